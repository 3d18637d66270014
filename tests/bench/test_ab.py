"""Comparison of two versions: the statistics, and a run of this version against itself."""

from __future__ import annotations

import sys

import pytest

from pycollective.bench import ab
from pycollective.bench.workload.cases import MEASURED


def row(before: list[float], after: list[float]) -> ab.Row:
    return ab.rows_of({ab.Case("allreduce", "plain", 8): (before, after)})[0]


def test_a_slowdown_beyond_the_spread_is_reported() -> None:
    slow = row([1.0, 1.01, 1.0, 1.02], [1.1, 1.11, 1.1, 1.12])
    assert slow.slower and slow.ratio.median == pytest.approx(1.1, rel=0.01)


@pytest.mark.parametrize(
    ("before", "after"),
    [([1.0, 1.0, 1.0, 1.0], [1.02, 1.02, 1.02, 1.02]), ([1.0, 1.5, 1.0, 1.5], [1.2, 1.6, 1.2, 1.6])],
    ids=["within 3 %", "within what one version differs from itself"],
)
def test_other_differences_are_not_reported(before: list[float], after: list[float]) -> None:
    assert not row(before, after).slower


def test_every_collective_runs_in_both_jobs() -> None:
    cases = [ab.Case(collective, "plain", 64) for collective in MEASURED]
    cases += [ab.Case("allreduce", "windows", 4096), ab.Case("allreduce", "plain", 4096, "ring", in_place=True)]
    rows = ab.compare(sys.executable, sys.executable, cases, ranks=2, generations=1, rounds=1, budget=0.0)
    assert [r.case for r in rows] == cases
    assert all(r.ratio.rounds == 2 and r.before > 0 for r in rows)


def test_the_speed_table_s_cases() -> None:
    four = set(ab.speed_table_cases(4))
    assert {ab.Case("allreduce", "windows", 64 << 20, name) for name in ("default", "ring", "tree", "wheel")} <= four
    assert ab.Case("allreduce", "plain", 64 << 20, in_place=True) in four
    assert {case.bytes for case in ab.speed_table_cases(8)} == {4, 64, 1024, 64 << 20}
