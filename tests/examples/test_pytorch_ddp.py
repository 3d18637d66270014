"""The DDP example as a reader would run it: it learns, and ranks, backends and launchers agree."""

from __future__ import annotations

import argparse
import functools
import pickle
from typing import Any

import pytest
from c10d import World, run

from labs import EXAMPLES, example, trained
from launch import find_mpirun, launch, needs

torch: Any = pytest.importorskip("torch")
needs("sklearn")
pytestmark = pytest.mark.torch


@functools.cache
def digits(n: int, launcher: str, *args: str) -> tuple[float, str]:
    """(accuracy, digest) of a run."""
    loaded = ["torch", "sklearn.datasets"]
    for _ in range(3):
        ran = launch(n, EXAMPLES / "pytorch_ddp.py", *args, launcher=launcher, loaded=loaded, timeout=100)
        if "gloo" not in args or "terminate called without" not in ran.stderr:
            break  # Gloo's threads sometimes abort a process at its exit
    return trained(ran)


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
    training = pickle.dumps(example("pytorch_ddp").read_digits(torch.float64)[0])  # every rank would load scikit-learn
    for n in (1, 2, 3, 4):
        results = run(n, _weights, training, gloo=False)
        assert all(weights == results[0] for weights in results)
        ends.append(torch.frombuffer(bytearray(results[0]), dtype=torch.float64))
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=1e-12, atol=1e-12)


def _weights(world: World, training: bytes) -> bytes:
    """Parameters of a rank after two epochs."""
    args = argparse.Namespace(epochs=2, lr=0.1, batch=48, seed=0, dtype="float64")
    model = example("pytorch_ddp").train(pickle.loads(training), args)
    return b"".join(p.detach().numpy().tobytes() for p in model.parameters())
