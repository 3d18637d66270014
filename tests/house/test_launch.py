"""The tests' launcher fails when a rank fails, hangs or is killed; otherwise every test that uses it is worthless."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from speed import deadline

from launch import find_mpirun, launch

LAUNCHERS = [
    "pycollective",
    pytest.param("mpirun", marks=pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun")),
]
WHO = "import os; rank = int(os.environ.get('PYCOLLECTIVE_RANK', os.environ.get('OMPI_COMM_WORLD_RANK')))\n"


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_outputs_are_separated_by_rank(launcher: str) -> None:
    done = launch(3, WHO + "import sys; print(rank, sys.argv[1:])", "a", 7, launcher=launcher, check=True)
    assert done.outputs == [f"{rank} ['a', '7']\n" for rank in range(3)]
    assert (done[1], len(done), list(done)[2]) == (done.outputs[1], 3, done.outputs[2])


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_failing_rank_fails(launcher: str) -> None:
    done = launch(2, WHO + "print('here', flush=True)\nassert rank == 0, 'told you'", launcher=launcher)
    assert done.returncode == 1
    assert "told you" in done.stderr
    with pytest.raises(AssertionError, match=r"(?s)exit code 1.*rank 1\nhere.*told you"):
        done.check()


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_hang_fails_in_time_and_shows_the_output(launcher: str) -> None:
    started = time.monotonic()
    seconds = deadline(2)
    with pytest.raises(AssertionError, match=rf"(?s)not done after {seconds} s.*rank 1\nhere"):
        launch(2, WHO + "import time; print('here', flush=True); time.sleep(999)", launcher=launcher, timeout=seconds)
    assert time.monotonic() - started < 10 * seconds


def test_scripts_and_functions(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text("print('file')")
    assert launch(1, file, launcher="alone", check=True)[0] == "file\n"
    assert launch(1, str(file), launcher="alone", check=True)[0] == "file\n"
    assert launch(2, _double, 4, check=True).outputs == ["8\n", "8\n"]


def _double(text: str) -> None:
    print(2 * int(text))


def test_ranks_do_not_inherit_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMIX_RANK", "3")
    monkeypatch.setenv("PYCOLLECTIVE_RANK", "3")
    code = "import os; print('PMIX_RANK' in os.environ, 'PYCOLLECTIVE_RANK' in os.environ, os.environ['EXTRA'])"
    assert launch(1, code, launcher="alone", env={"EXTRA": "yes"}, check=True)[0] == "False False yes\n"
