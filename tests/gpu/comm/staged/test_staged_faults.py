"""Ranks and hosts lost during staged calls on arrays of the emulated GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts import trials
from hosts.trials import Trial

from launch import find_mpirun
from pycollective.bench.namespaces import why_not

KILLED = Trial(1, "kill", (2, 2), "staged", (3,))
CUT = Trial(2, "cut", (2, 1), "staged", (1,))


@pytest.mark.mpi
@pytest.mark.emulated
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun")
@pytest.mark.parametrize("trial", [KILLED, CUT], ids=["killed", "cut"])
def test_trial(built: Path, trial: Trial) -> None:
    """Every survivor names what was lost, and its next call raises at once; it shrinks the communicator, or may not."""
    result = trials.run(trial)
    assert not result.problems, result.problems
    assert set(result.seconds) == trial.survivors
