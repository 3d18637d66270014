"""The TensorFlow example as a reader would run it: it learns, and launchers do not change bits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launch import find_mpirun, launch, needs

needs("tensorflow", "sklearn")
EXAMPLE = Path(__file__).parents[2] / "examples" / "tensorflow_digits.py"


def digits(n: int, launcher: str, *args: str) -> tuple[float, str]:
    """(accuracy, digest) of a run."""
    loaded = ["tensorflow", "sklearn.datasets"]
    ran = launch(n, EXAMPLE, *args, launcher=launcher, loaded=loaded, timeout=120).check()
    assert ran.outputs[1:] == [""] * (n - 1)
    found = re.fullmatch(r"accuracy (\d\.\d{4})  digest ([0-9a-f]{16})  ranks (\d)\n", ran.outputs[0])
    assert found, ran.report()
    assert int(found[3]) == n
    return float(found[1]), found[2]


@pytest.mark.mpi
@pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun")
def test_it_learns_and_the_launcher_does_not_change_bits() -> None:
    accuracy, digest = digits(4, "pycollective", "--epochs", "10")
    assert accuracy >= 0.95
    assert digest == digits(4, "mpirun", "--epochs", "10")[1]
