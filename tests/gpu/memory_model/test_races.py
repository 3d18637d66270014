"""No compiled schedule has a data race when a GPU runs it, and each barrier and wait is needed for that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from gpu.memory_model.happens_before import Race, check
from pycollective.comm.planner import PLACEMENTS, ScheduleKey, choose, keeps_small, schedule_for
from pycollective.errors import Error
from pycollective.schedule import describe
from pycollective.schedule.collectives import CALLS
from pycollective.schedule.compiler.schedule import Placement, Schedule

SHORT, LONG = 1 << 12, 1 << 28


def schedules(size: int, collective: str, topology: str) -> Iterator[Schedule]:
    """Those that a GPU's planner may choose, of short and long messages, in every placement."""
    made: set[int] = set()
    for nbytes in (SHORT, LONG):
        try:
            chosen, small = choose(collective, topology, nbytes)
        except Error:  # the topology lacks the collective
            return
        root = size - 1 if CALLS[collective].rooted else None
        for name in PLACEMENTS.values():
            where = Placement[name]
            keeps = small and keeps_small(chosen, collective, size, root, where)
            try:
                schedule = schedule_for(ScheduleKey(chosen, collective, size, root, where, keeps))
            except Error:  # not with this number of ranks
                continue
            if id(schedule) not in made:
                made.add(id(schedule))
                yield schedule


def races(schedule: Schedule, **faults: Any) -> bool:
    try:
        check(schedule, **faults)
    except Race:
        return True
    return False


BARRIERS = ("barriers of a step", "barrier of gather", "barrier before publish")
COLLECTIVES = [row.name for row in CALLS.values() if row.name not in ("barrier", "send") and not row.weighted]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_no_schedule_has_a_race(collective: str) -> None:
    checked = 0
    for size in (2, 3, 4):
        for topology in describe():
            for schedule in schedules(size, collective, topology.name):
                check(schedule)
                checked += 1
    assert checked > 10


def test_what_is_left_out_is_missed() -> None:
    """Every barrier is needed, and most waits: some are needed only for other numbers of tiles or elements."""
    found, tried = Counter[str](), Counter[str]()
    for collective in ("allreduce", "broadcast"):
        for topology in ("direct", "ring", "tree", "wheel"):
            for schedule in schedules(3, collective, topology):
                for name in (*BARRIERS, "exit waits", *(["guard"] if schedule.cells > 0 else [])):
                    tried[name] += 1
                    found[name] += races(schedule, without={name})
                for rank, own in enumerate(schedule.ranks):
                    for number, step in enumerate(own.steps):
                        for wait in range(len(step.waits)):
                            tried["wait"] += 1
                            found["wait"] += races(schedule, without={(number, wait)}, only=rank)
    assert all(found[name] == tried[name] for name in BARRIERS), found
    assert all(found[name] > tried[name] / 3 for name in ("exit waits", "wait", "guard")), found
