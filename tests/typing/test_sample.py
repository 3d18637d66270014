"""The typed sample program runs: the arrays have the declared types. `make lint` has type checkers read it."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

import pycollective as pc

SAMPLE = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("sample.py"))))


@pytest.mark.parametrize("part", ["of_numpy", "of_numbers", "of_bare", "nonblocking", "of_objects"])
def test_between_ranks(part: str) -> None:
    pc.local_world(3).run(getattr(SAMPLE, part))


@pytest.mark.torch
def test_of_torch() -> None:
    torch = pytest.importorskip("torch")
    results = pc.local_world(2).run(lambda comm: SAMPLE.of_torch(comm, torch.ones(3)))
    assert all(result.tolist() == [1.0] * 3 for result in results)


def test_alone() -> None:
    SAMPLE.main()
