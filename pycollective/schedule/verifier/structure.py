"""Whether everything that a schedule's steps refer to exists, is accessible to their rank, and is published."""

from __future__ import annotations

from collections import Counter

from pycollective.errors import VerificationError
from pycollective.schedule.collectives import COLLECTIVES
from pycollective.schedule.compiler.schedule import Schedule
from pycollective.schedule.compiler.steps import COMBINE, IN, OUT, RECV, SEND, Step, Wait, describe_step


def check_structure(schedule: Schedule) -> None:
    """Check that everything a step refers to exists, is accessible to its rank, and is published if waited for.

    Raises:
        VerificationError: names rank, step and the error.
    """
    if schedule.hosts and len(schedule.hosts) != schedule.size:
        raise VerificationError(f"{schedule.title}: ranks on several hosts need a host each")
    for rank, mine in enumerate(schedule.ranks):
        where = f"{schedule.title}: rank {rank}"
        if len(mine.steps) > schedule.stride:
            raise VerificationError(f"{where}: {len(mine.steps)} steps exceed the stride {schedule.stride}")
        for wait in mine.exit_waits + mine.readers:
            _check_wait(schedule, rank, wait, f"{where}: after its steps")
        lag = 0
        for index, step in enumerate(mine.steps):
            place = f"{where}: step {index} ({describe_step(step)})"
            if not (step.sources and step.targets and 0 <= step.chunk < schedule.chunks):
                raise VerificationError(f"{place}: needs a source, a target and one of {schedule.chunks} chunks")
            if step.lag < lag or (step.lag and not schedule.hosts):
                raise VerificationError(f"{place}: lags by {step.lag} tiles, after a step that lags by {lag}")
            lag = step.lag
            if step.kind == COMBINE:
                _check_combine(schedule, rank, step, place)
            else:
                _check_transfer(schedule, rank, step, place)
    _check_messages(schedule)


def _check_combine(schedule: Schedule, rank: int, step: Step, where: str) -> None:
    for wait in step.waits:
        _check_wait(schedule, rank, wait, where)
    for source in step.sources:
        _check_place(schedule, rank, source.rank, source.place, step.chunk, where)
    for target in step.targets:
        _check_target(schedule, rank, target.rank, target.place, step.chunk, where)


def _check_target(schedule: Schedule, rank: int, owner: int, place: int, chunk: int, where: str) -> None:
    _check_place(schedule, rank, owner, place, chunk, where)
    if place == IN:
        raise VerificationError(f"{where}: writes an input")
    if place >= 0 and owner != rank:
        raise VerificationError(f"{where}: writes the scratch of rank {owner}")


def _check_transfer(schedule: Schedule, rank: int, step: Step, where: str) -> None:
    """A send or a recv, except whether they match."""
    if step.complete or step.weights:
        raise VerificationError(f"{where}: changes what it transfers")
    if step.early and step.kind != RECV:
        raise VerificationError(f"{where}: only a recv is early")
    if len(step.sources) > 1 or (step.kind == RECV and len(step.targets) > 1):
        raise VerificationError(f"{where}: transfers from one place, and to one place of a rank")
    waits, (source,) = step.waits, step.sources
    if step.kind == RECV:
        (target,) = step.targets
        _check_target(schedule, rank, target.rank, target.place, step.chunk, where)
        own = target.rank
    else:
        _check_place(schedule, rank, source.rank, source.place, step.chunk, where)
        own = source.rank
    if own != rank:
        raise VerificationError(f"{where}: transfers memory of rank {own}")
    if step.kind == RECV:
        if not waits or waits[0] != Wait(source.rank, source.place):
            raise VerificationError(f"{where}: its first wait is not for its message")
        _check_arrival(schedule, rank, step, where)
        waits = waits[1:]
    for wait in waits:
        _check_wait(schedule, rank, wait, where)


def _check_arrival(schedule: Schedule, rank: int, step: Step, where: str) -> None:
    """The message of a recv step is that of a send step to its rank, with the same chunk."""
    sender, count = step.sources[0].rank, step.sources[0].place
    if not 0 <= sender < schedule.size or _share_host(schedule, rank, sender):
        raise VerificationError(f"{where}: rank {sender} is not on another host")
    steps = schedule.ranks[sender].steps
    index = schedule.index(count)
    if count < 1 or index >= len(steps) or count != steps[index].lag * schedule.stride + index + 1:
        raise VerificationError(f"{where}: rank {sender} has no step with count {count}")
    send = steps[index]
    if send.kind != SEND or rank not in (target.rank for target in send.targets) or send.chunk != step.chunk:
        raise VerificationError(f"{where}: step {index} of rank {sender} does not send it")


def _check_messages(schedule: Schedule) -> None:
    """Every target of a send is a rank of another host, which receives it exactly once."""
    receipts = Counter(
        (step.sources[0].rank, schedule.index(step.sources[0].place), rank)
        for rank, mine in enumerate(schedule.ranks)
        for step in mine.steps
        if step.kind == RECV
    )
    for rank, mine in enumerate(schedule.ranks):
        for index, step in enumerate(mine.steps):
            if step.kind != SEND:
                continue
            where = f"{schedule.title}: rank {rank}: step {index} ({describe_step(step)})"
            for target in step.targets:
                if not 0 <= target.rank < schedule.size or _share_host(schedule, rank, target.rank):
                    raise VerificationError(f"{where}: rank {target.rank} is not on another host")
                found = receipts[rank, index, target.rank]
                if found != 1 or [other.rank for other in step.targets].count(target.rank) != 1:
                    raise VerificationError(f"{where}: rank {target.rank} receives it {found} times")


def _share_host(schedule: Schedule, rank: int, other: int) -> bool:
    return not schedule.hosts or schedule.hosts[rank] == schedule.hosts[other]


def _check_wait(schedule: Schedule, rank: int, wait: Wait, where: str) -> None:
    if wait.peer == rank or not 0 <= wait.peer < schedule.size:
        raise VerificationError(f"{where}: waits for rank {wait.peer}")
    if not _share_host(schedule, rank, wait.peer):
        raise VerificationError(f"{where}: waits for rank {wait.peer}, which is on another host")
    if wait.count == 0:
        return
    steps = schedule.ranks[wait.peer].steps
    lag, index = divmod(wait.count - 1, schedule.stride)
    if wait.count < 0 or index >= len(steps) or lag != steps[index].lag:
        raise VerificationError(f"{where}: waits for {wait.count} of {len(steps)} steps of rank {wait.peer}")
    if not steps[index].consumed:
        raise VerificationError(f"{where}: waits for step {index} of rank {wait.peer}, which is not published")


def _check_place(schedule: Schedule, rank: int, owner: int, place: int, chunk: int, where: str) -> None:
    if not (0 <= owner < schedule.size and OUT <= place < schedule.cells):
        raise VerificationError(f"{where}: no such place: rank {owner}, place {place}")
    if not _share_host(schedule, rank, owner):
        raise VerificationError(f"{where}: touches memory of rank {owner}, which is on another host")
    if place >= 0:
        return
    collective, placement = COLLECTIVES[schedule.collective], schedule.placement
    exists = collective.starts if place == IN else collective.ends
    if not exists(owner, chunk, schedule.size, schedule.root or 0):
        kind = "input" if place == IN else "output"
        raise VerificationError(f"{where}: rank {owner} has no {kind} of chunk {chunk}")
    shared = placement.in_shared if place == IN else placement.out_shared
    if owner != rank and not shared:
        raise VerificationError(f"{where}: touches a private buffer of rank {owner}")
