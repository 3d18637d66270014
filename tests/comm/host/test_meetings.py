"""Which ranks wait for each other in a call: ranks compare calls only with those that they wait for.

A mismatch is detected in the call itself if no subset of the ranks can complete its call without waiting for one of
the others.
"""

from __future__ import annotations

import itertools

import pytest

from pycollective.schedule import COLLECTIVES, Placement, Schedule, compile, describe, get
from pycollective.schedule.compiler.p2p import compile_send


def by_themselves(schedule: Schedule) -> list[tuple[int, ...]]:
    """The subsets of the ranks that wait only for each other."""
    waits = [
        {wait.peer for wait in (*rank.exit_waits, *(wait for step in rank.steps for wait in step.waits))}
        for rank in schedule.ranks
    ]
    parts = (part for k in range(1, schedule.size) for part in itertools.combinations(range(schedule.size), k))
    return [part for part in parts if all(waits[rank] <= set(part) for rank in part)]


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7])
def test_no_subset_of_the_ranks_completes_alone(n: int) -> None:
    """In no call on plain arrays; with windows, all ranks wait for all on entry."""
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


def test_a_sender_may_complete_alone_but_not_its_receiver() -> None:
    """An eager message; the receiver detects the mismatch."""
    assert by_themselves(compile_send(eager=True)) == [(0,)]
    assert by_themselves(compile_send(eager=False)) == []
