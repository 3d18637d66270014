"""The JAX example as a reader would run it: it learns, and neither launchers nor fusion change the bits."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from launch import find_mpirun, launch, needs

needs("jax", "optax", "sklearn")
EXAMPLE = Path(__file__).parents[2] / "examples" / "jax_digits.py"
needs_mpi = [pytest.mark.mpi, pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun")]


@functools.cache
def digits(n: int, launcher: str, *args: str, **env: str) -> tuple[float, str]:
    """(accuracy, digest) of a run."""
    ran = launch(n, EXAMPLE, *args, launcher=launcher, env=env, timeout=120).check()
    found = re.fullmatch(r"accuracy (\d\.\d{4})  digest ([0-9a-f]{16})  ranks (\d)\n", ran.outputs[0])
    assert found and int(found[3]) == n, ran.report()
    return float(found[1]), found[2]


def test_it_learns() -> None:
    assert digits(4, "pycollective")[0] >= 0.96


@pytest.mark.parametrize("launcher", ["pycollective", pytest.param("mpirun", marks=needs_mpi)])
def test_neither_the_launcher_nor_fusion_changes_bits(launcher: str) -> None:
    fused = digits(3, launcher, "--epochs", "2")
    assert fused == digits(3, "pycollective", "--epochs", "2", HOROVOD_FUSION_THRESHOLD="0")
