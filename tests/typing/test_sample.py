"""The typed sample program runs: the arrays have the declared types. `make lint` has type checkers read it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import pycollective as pc


@pytest.fixture(scope="module")
def sample() -> ModuleType:
    spec = importlib.util.spec_from_file_location("typed_sample", Path(__file__).with_name("sample.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("part", ["of_numpy", "of_numbers", "of_bare", "nonblocking", "of_objects"])
def test_between_ranks(sample: ModuleType, part: str) -> None:
    pc.local_world(3).run(getattr(sample, part))


@pytest.mark.torch
def test_of_torch(sample: ModuleType) -> None:
    torch = pytest.importorskip("torch")
    results = pc.local_world(2).run(lambda comm: sample.of_torch(comm, torch.ones(3)))
    assert all(result.tolist() == [1.0] * 3 for result in results)


def test_alone(sample: ModuleType) -> None:
    sample.main()
