"""The schedule of a message from rank 0 to rank 1 of a pair: a broadcast to one."""

from __future__ import annotations

import dataclasses

from pycollective.schedule.compiler import compile as compile_schedule
from pycollective.schedule.schedule import Placement, Schedule


def compile_send(eager: bool) -> Schedule:
    """Compile a send.

    Args:
        eager: the sender may leave when its message is in scratch, before the receiver has come. Right for messages
            of one tile only; the slot rule keeps the scratch until it has been read.
    """
    schedule = compile_schedule("direct", "broadcast", 2, 0, Placement.STAGED)
    if not eager:
        return schedule
    sender, receiver = schedule.ranks
    return dataclasses.replace(schedule, ranks=(dataclasses.replace(sender, exit_waits=()), receiver))
