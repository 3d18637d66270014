"""The DDP example as a reader would run it: it learns, and ranks, backends and launchers agree."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from c10d import World, run

from launch import find_mpirun, launch, needs

torch: Any = pytest.importorskip("torch")
needs("sklearn")
pytestmark = pytest.mark.torch
EXAMPLE = Path(__file__).parents[2] / "examples" / "pytorch_ddp.py"


@functools.cache
def digits(n: int, launcher: str, *args: str) -> tuple[float, str]:
    """(accuracy, digest) of a run."""
    if launcher == "torchrun":
        text = torchrun(n, *args)
    else:
        ran = launch(n, EXAMPLE, *args, launcher=launcher, loaded=["torch", "sklearn.datasets"]).check()
        assert ran.outputs[1:] == [""] * (n - 1)
        text = ran.outputs[0]
    found = re.fullmatch(r"accuracy (\d\.\d{4})  digest ([0-9a-f]{16})  backend (\S+)\n", text)
    assert found, text
    return float(found[1]), found[2]


def torchrun(n: int, *args: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYCOLLECTIVE_")} | {"OMP_NUM_THREADS": "1"}
    for _ in range(3):
        with tempfile.TemporaryDirectory() as elsewhere:  # not the source tree
            ran = subprocess.run(
                [*command, str(EXAMPLE), *args], cwd=elsewhere, env=env, capture_output=True, text=True, timeout=100
            )
        if "gloo" not in args or "terminate called without" not in ran.stderr:
            break  # Gloo's threads sometimes abort a process at its exit
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.mpi
@pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun")
def test_under_mpirun_it_gives_the_bits_of_gloo() -> None:
    """Two ranks: there is only one order to add two numbers."""
    gloo = digits(2, "torchrun", "--epochs", "2", "--backend", "gloo")
    assert digits(2, "mpirun", "--epochs", "2") == gloo


def test_it_learns() -> None:
    assert digits(1, "pycollective")[0] >= 0.96


def test_in_float64_all_numbers_of_ranks_end_with_the_same_weights() -> None:
    ends = []
    training = pickle.dumps(load(str(EXAMPLE)).read_digits(torch.float64)[0])  # every rank would load scikit-learn
    for n in (1, 2, 3, 4):
        results = run(n, _weights, str(EXAMPLE), training, gloo=False)
        assert all(weights == results[0] for weights in results)
        ends.append(torch.frombuffer(bytearray(results[0]), dtype=torch.float64))
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=1e-12, atol=1e-12)


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("pytorch_ddp", path)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def _weights(world: World, path: str, training: bytes) -> bytes:
    """Parameters of a rank after two epochs."""
    args = argparse.Namespace(epochs=2, lr=0.1, batch=48, seed=0, dtype="float64")
    model = load(path).train(pickle.loads(training), args)
    return b"".join(p.detach().numpy().tobytes() for p in model.parameters())
