"""Who meets whom in a call: ranks look at what others call when they wait for them, and a wait is all there is.

Ranks that call different things are found in that very call, if no part of the ranks can get through its call without
waiting for one of the rest.
"""

from __future__ import annotations

import itertools

import pytest

from pycollective.schedule import COLLECTIVES, Placement, Schedule, compile, describe, get
from pycollective.schedule.compiler.p2p import compile_send


def waited_for(schedule: Schedule) -> list[set[int]]:
    """For each rank, those that it waits for."""
    waits = [[*rank.exit_waits, *(wait for step in rank.steps for wait in step.waits)] for rank in schedule.ranks]
    return [{wait.peer for wait in mine} for mine in waits]


def by_themselves(schedule: Schedule) -> list[tuple[int, ...]]:
    """The parts of the ranks that wait only for each other."""
    waits = waited_for(schedule)
    parts = (part for k in range(1, schedule.size) for part in itertools.combinations(range(schedule.size), k))
    return [part for part in parts if all(waits[rank] <= set(part) for rank in part)]


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7])
def test_no_part_of_the_ranks_gets_through_by_itself(n: int) -> None:
    """In no call on plain arrays; where there are windows, all ranks meet all on entry."""
    seen = 0
    for row in describe():
        for collective in row.collectives:
            roots = range(n) if COLLECTIVES[collective].rooted else (None,)
            small = hasattr(get(row.name), f"{collective}_small")
            for root, variant in itertools.product(roots, (False, True) if small else (False,)):
                schedule = compile(row.name, collective, n, root, Placement.STAGED, variant)
                assert not by_themselves(schedule), f"{row.name} {collective} root={root} small={variant}"
                seen += 1
    assert seen > 50


def test_a_sender_may_be_by_itself_but_not_its_receiver() -> None:
    """An eager message; the receiver finds what does not fit."""
    assert by_themselves(compile_send(eager=True)) == [(0,)]
    assert by_themselves(compile_send(eager=False)) == []
