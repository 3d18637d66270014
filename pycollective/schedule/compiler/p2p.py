"""The schedule of a message from rank 0 to rank 1 of a pair: a broadcast to one."""

from __future__ import annotations

import dataclasses

from pycollective.schedule.compiler.compiler import compile_program
from pycollective.schedule.compiler.schedule import Schedule
from pycollective.schedule.language.program import Program


def compile_send(eager: bool) -> Schedule:
    """Compile a send.

    Args:
        eager: the sender may return once its message is in scratch, before the receiver has called. Correct for
            messages of one tile only; the slot rule keeps the scratch until it has been read.
    """
    program = Program("broadcast", 2, 0)
    for c in program.chunks(1):
        program[1, c] = program[0, c]
    schedule = compile_program(program)
    sender, receiver = schedule.ranks
    # The root of a broadcast has a result; a sender has none.
    steps = tuple(
        dataclasses.replace(step, targets=tuple(target for target in step.targets if target.place >= 0))
        for step in sender.steps
    )
    sender = dataclasses.replace(sender, steps=steps, exit_waits=() if eager else sender.exit_waits)
    return dataclasses.replace(schedule, ranks=(sender, receiver))
