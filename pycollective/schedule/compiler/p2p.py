"""The schedule of a message from rank 0 to rank 1 of a pair: a broadcast to one."""

from __future__ import annotations

import dataclasses

from pycollective.schedule.collectives import CALLS
from pycollective.schedule.compiler.compiler import compile_program
from pycollective.schedule.compiler.schedule import RankSchedule, Schedule
from pycollective.schedule.compiler.steps import IN, OUT, RECV, SEND, Source, Step, Target, Wait
from pycollective.schedule.language.program import Program


def compile_send(eager: bool, hosts: tuple[int, ...] = ()) -> Schedule:
    """Compile a send.

    Args:
        eager: the sender may return once its message is in scratch, before the receiver has called. Correct for
            messages of one tile only; the slot rule keeps the scratch until it has been read.
        hosts: those of the two ranks, if they are different: a sender returns when the link has taken its message.
    """
    program = Program(CALLS["send"].program, 2, 0, hosts)
    for c in program.chunks(1):
        program[1, c] = program[0, c]
    schedule = compile_program(program)
    if hosts:
        return dataclasses.replace(schedule, ranks=_between_hosts(), stride=1, cells=0)
    sender, receiver = schedule.ranks
    # The root of a broadcast has a result; a sender has none.
    steps = tuple(
        dataclasses.replace(step, targets=tuple(target for target in step.targets if target.place >= 0))
        for step in sender.steps
    )
    sender = dataclasses.replace(sender, steps=steps, exit_waits=() if eager else sender.exit_waits)
    return dataclasses.replace(schedule, ranks=(sender, receiver))


def _between_hosts() -> tuple[RankSchedule, RankSchedule]:
    """Schedules of a message between hosts, from array to array."""
    send = Step(0, (Source(0, IN),), (Target(1, 0),), kind=SEND)
    recv = Step(0, (Source(0, 1),), (Target(1, OUT),), (Wait(0, 1),), kind=RECV, early=True)
    return RankSchedule((send,)), RankSchedule((recv,))
