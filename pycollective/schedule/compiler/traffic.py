"""What a schedule sends between hosts."""

from __future__ import annotations

from fractions import Fraction

from pycollective import checks
from pycollective.schedule.compiler.schedule import Schedule
from pycollective.schedule.compiler.steps import SEND


def traffic(schedule: Schedule) -> dict[tuple[int, int], Fraction]:
    """The data sent from one host to another, by (sender, receiver), as multiples of the buffer's size.

    The buffer is divided equally; blocks of different sizes are not considered.

    Raises:
        TypeError: not a schedule.
    """
    checks.instance(schedule, "schedule", Schedule, "a Schedule")
    sent: dict[tuple[int, int], Fraction] = {}
    for rank, mine in enumerate(schedule.ranks):
        for step in mine.steps:
            if step.kind == SEND:
                for target in step.targets:
                    pair = schedule.hosts[rank], schedule.hosts[target.rank]
                    sent[pair] = sent.get(pair, Fraction(0)) + Fraction(1, schedule.chunks)
    return dict(sorted(sent.items()))
