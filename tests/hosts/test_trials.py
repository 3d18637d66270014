"""Twenty trials in which ranks and hosts are lost, and how they are judged; `make faults` runs 200."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from typing import Any

import pytest
from faults.work import Result

from hosts import trials
from hosts.trials import Trial
from launch import find_mpirun
from pycollective.bench.namespaces import why_not

TWENTY = range(20)
AT_ONCE = 10
needs_hosts = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return list(trials.run_all(map(trials.trial, TWENTY), AT_ONCE))


@needs_hosts
@pytest.mark.parametrize("number", TWENTY, ids=lambda number: str(trials.trial(number)).replace(" ", "-"))
def test_trial(results: list[Result], number: int) -> None:
    check(results[number])


@needs_hosts
@pytest.mark.mpi
@pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun")
def test_trial_of_ranks_started_by_mpirun() -> None:
    check(trials.run(trials.trial(7), trials.by_mpirun))


def check(result: Result) -> None:
    assert not result.problems, result.problems
    assert set(result.seconds) == result.trial.survivors


def test_every_kind_of_work_is_in_twenty_trials() -> None:
    found = {trials.trial(number).kind for number in TWENTY}
    assert found == set(trials.KINDS) - ({"torch"} if importlib.util.find_spec("torch") is None else set())


def test_twenty_trials_have_all_faults_on_both_sides() -> None:
    every = [trials.trial(number) for number in TWENTY]
    assert Counter(one.fault for one in every) == dict.fromkeys(trials.FAULTS, 4)
    assert any(not one.may_shrink(rank) for one in every if one.fault == "gone" for rank in one.survivors)


TIED = Trial(0, "cut", (2, 2), "collective", (0,))
TORCH = Trial(0, "cut", (2, 2), "torch", (0,))
FROZEN = Trial(0, "freeze", (2, 2), "collective", (1,))
REFUSED = {"refused": "CommunicatorError: no"}


def test_who_may_shrink() -> None:
    assert [TIED.may_shrink(rank) for rank in range(4)] == [True, True, False, False]
    uneven = Trial(0, "cut", (1, 2), "collective", (0,))
    assert [uneven.may_shrink(rank) for rank in range(3)] == [False, True, True]
    assert not Trial(0, "gone", (2, 2), "collective", (0,)).may_shrink(2)  # rank 0's side is gone
    assert Trial(0, "kill", (2, 1), "collective", (0,)).may_shrink(2)


def _reports(text: str = "rank 2 on host1 was lost", kind: str = "PeerLostError", again: float = 0.0) -> list[Any]:
    return [{"pid": 1, "host": "host0"}, "busy", [[kind, "Error"], text, 101.0, again], "survived", {"size": 2}]


def judged(one: Trial, rank: int, reports: list[Any], problem: str | None, at: float = 100.0) -> Result:
    """The judgement: one problem, in which this is found; or none."""
    result = Result(one)
    if one.fault == "freeze":
        trials.judge_expelled(one, rank, reports, result)
    else:
        trials.judge(one, rank, reports, at, result)
    assert len(result.problems) == (problem is not None), result.problems
    assert problem is None or re.search(problem, result.problems[0]), result.problems
    return result


@pytest.mark.parametrize(
    ("one", "rank", "reports", "problem"),
    [
        (TIED, 0, _reports(), None),
        (TIED, 1, _reports("ranks 2 and 3 were lost"), None),
        (TIED, 1, _reports("ranks 1 and 3 were lost"), "names others, too"),
        (TIED, 1, _reports("rank 1 (world rank 3) was lost"), None),
        (TIED, 0, _reports()[:2], "has not raised"),
        (TIED, 0, _reports("rank 1 was lost"), "names none of the ranks"),
        (TIED, 0, _reports("a rank was lost after 3 s"), "names none of the ranks"),
        (TIED, 0, _reports(kind="MismatchError"), "raised MismatchError"),
        (TIED, 0, _reports(again=-1.0), "its next call"),
        (TIED, 0, [*_reports()[:4], {"size": 3}], "2 that continue"),
        (TIED, 0, [*_reports()[:3], REFUSED], "2 that continue"),
        (TIED, 2, [*_reports("rank 0 was lost")[:3], REFUSED], None),
        (TIED, 2, _reports("rank 0 was lost"), "shrink.. did not raise"),
        (TIED, 2, _reports("rank 0 was lost")[:3], "shrink.. did not raise"),
        (TIED, 0, _reports(kind="BootstrapError"), "raised BootstrapError"),
        (TORCH, 0, _reports(kind="BootstrapError"), None),  # of a process group that is being made
        (FROZEN, 2, [*_reports()[:3], REFUSED], None),  # once it has returned
        (FROZEN, 2, _reports()[:2], "has not noticed"),
        (FROZEN, 2, _reports(), "continues"),
    ],
)
def test_a_survivor_is_judged(one: Trial, rank: int, reports: list[Any], problem: str | None) -> None:
    result = judged(one, rank, reports, problem)
    if problem is None and one is not FROZEN:
        assert result.seconds == {rank: 1.0} and not trials.late(result)
        assert trials.late(judged(one, rank, reports, problem, 98.0)) == [rank]


AGAIN = Trial(0, "again", (2, 2), "collective", (1, 2))
AGAIN_RANK_0 = Trial(0, "again", (2, 2), "collective", (1, 0))  # the rest: of the three of the first shrink()


@pytest.mark.parametrize(
    ("one", "report", "problem"),
    [
        (AGAIN, {"size": 2, "at": 101.5}, None),
        (AGAIN, {"refused": "CommunicatorError: no", "at": 101.5}, "2 that continue"),
        (AGAIN, {"wrong": "a traceback"}, "2 that continue"),
        (AGAIN_RANK_0, {"size": 2, "at": 101.5}, None),
        (AGAIN_RANK_0, {"refused": "CommunicatorError: no", "at": 101.5}, None),
        (AGAIN_RANK_0, {"size": 3, "at": 101.5}, "did not raise"),
    ],
)
def test_a_second_loss_is_judged(one: Trial, report: dict[str, Any], problem: str | None) -> None:
    result = judged(one, 3, [*_reports("rank 1 was lost")[:3], "survived", report], problem, 101.0)
    assert result.seconds == {3: report.get("at", 146.0) - 101}
