"""The tests' launcher fails when a rank fails, hangs or is killed; otherwise every test that uses it is worthless."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import processes
import pytest
from processes import alive, run
from speed import until

from launch import find_mpirun, launch

LAUNCHERS = [
    "pycollective",
    pytest.param("mpirun", marks=pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun")),
]
STARTS = pytest.mark.parametrize("loaded", [[], ["difflib"]], ids=["python", "warm"])
WHO = "import os; rank = int(os.environ.get('PYCOLLECTIVE_RANK', os.environ.get('OMPI_COMM_WORLD_RANK')))\n"


@STARTS
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_failing_rank_fails(launcher: str, loaded: list[str]) -> None:
    script = WHO + "print('here', flush=True)\nassert rank == 0, 'told you'"
    done = launch(2, script, launcher=launcher, loaded=loaded)
    assert done.returncode == 1
    assert "told you" in done.stderr and "warm.py" not in done.stderr
    with pytest.raises(AssertionError, match=r"(?s)exit code 1.*rank 1\nhere.*told you"):
        done.check()


@STARTS
def test_a_rank_is_killed(loaded: list[str]) -> None:
    done = launch(2, WHO + "os.kill(os.getpid(), 9 if rank == 1 else 0)", loaded=loaded)
    assert done.returncode == 128 + 9, done.report()


@STARTS
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_hang_fails_in_time_and_shows_the_output(launcher: str, loaded: list[str], tmp_path: Path) -> None:
    script = WHO + "import sys, time; open(sys.argv[1], 'w').write(f'{os.getpid()}'); print('here', flush=True)"
    with pytest.raises(AssertionError, match=r"(?s)not done after 1 s.*rank 1\nhere"):
        launch(2, f"{script}; time.sleep(999)", tmp_path / "pid", launcher=launcher, timeout=1, loaded=loaded)
    until(lambda: not alive(int((tmp_path / "pid").read_text())))


@STARTS
def test_ranks_do_not_inherit_a_job(loaded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMIX_RANK", "3")
    monkeypatch.setenv("PYCOLLECTIVE_RANK", "3")
    code = "import os; print('PMIX_RANK' in os.environ, 'PYCOLLECTIVE_RANK' in os.environ, os.environ['EXTRA'])"
    done = launch(1, code, launcher="alone", env={"EXTRA": "yes"}, loaded=loaded, check=True)
    assert done[0] == "False False yes\n"


def _what_remains(comm: Any, link: Any) -> tuple[int, str | None, float]:
    found = os.getpid(), os.environ.get("LEFT_BY_A_BODY"), comm.allreduce(1.0)
    os.environ["LEFT_BY_A_BODY"] = "yes"
    return found


def _fails(comm: Any, link: Any, how: str) -> None:
    if comm.rank == 1 and how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    assert comm.rank == 0, how


@pytest.mark.parametrize(("how", "report"), [("told you", "rank 1 raised.*told you"), ("killed", "ended with code -9")])
def test_processes_are_used_again_until_a_rank_fails(how: str, report: str) -> None:
    first = run(2, _what_remains, reuse=True)
    assert run(2, _what_remains, reuse=True) == first
    assert [found[1:] for found in first] == [(None, 2.0)] * 2
    with pytest.raises(AssertionError, match=f"(?s){report}"):
        run(2, _fails, how, reuse=True)
    others = run(2, _what_remains, reuse=True)
    assert not {found[0] for found in others} & {found[0] for found in first}
    assert not any(alive(found[0]) for found in first)


def _patches(comm: Any, link: Any) -> int:
    processes.patched = comm.rank == 1
    return os.getpid()


def test_processes_that_were_patched_are_not_used_again() -> None:
    patched = run(2, _patches, reuse=True)
    assert not any(map(alive, patched))
    assert run(2, _what_remains, reuse=True)[0][0] not in patched
