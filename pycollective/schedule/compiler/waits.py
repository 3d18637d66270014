"""Last pass of the compiler: order each rank's steps, and turn dependencies into the minimum of waits.

A rank publishes one counter: the number of its completed steps. A vector clock for each rank holds what it knows of
every counter; waiting for a step adds all that was known when that step was published. Waits for what is already known
are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pycollective.schedule.compiler.lowering import LoweredStep
from pycollective.schedule.compiler.schedule import RankSchedule, Step, Wait

UNKNOWN = -1

Clock = list[int]
"""For each rank, the number of steps known to be completed; 0: it has entered the call, UNKNOWN: not even that."""


@dataclass(slots=True)
class _Done:
    """A step in its position, with the clock that a peer gets by waiting for it."""

    lowered: LoweredStep
    waits: tuple[Wait, ...]
    clock: Clock


def order_steps(steps: list[LoweredStep], size: int) -> list[list[LoweredStep]]:
    """The list of each rank: by depth, so that steps start as early as possible.

    Within a depth there are no dependencies. There, copies from peers come last, the nearest following rank's first, so
    that the ranks do not all read from the same peer at once.
    """
    lists: list[list[LoweredStep]] = [[] for _ in range(size)]
    for step in steps:
        lists[step.rank].append(step)
    for mine in lists:
        mine.sort(key=lambda step: (step.depth, _distance(step, size)))
        for position, step in enumerate(mine):
            step.position = position
    return lists


def _distance(step: LoweredStep, size: int) -> int:
    return 0 if len(step.sources) > 1 else (step.sources[0].rank - step.rank) % size


def synchronize(lists: list[list[LoweredStep]]) -> tuple[RankSchedule, ...]:
    """Each rank's steps with their waits, and the waits at the ends of call and slot."""
    size = len(lists)
    clocks: list[Clock] = [[UNKNOWN] * size for _ in range(size)]
    done: list[list[_Done]] = [[] for _ in range(size)]
    # A step depends only on steps of smaller depth, so in this order it follows those it waits for.
    for step in sorted((step for mine in lists for step in mine), key=lambda step: (step.depth, step.position)):
        rank = step.rank
        wanted = [(before.rank, before.position + 1) for before in step.depends if before.rank != rank]
        wanted += [(peer, 0) for peer in step.entered]
        waits, clocks[rank] = _fewest(wanted, clocks[rank], done)
        done[rank].append(_Done(step, waits, clocks[rank]))

    buffers, scratch = _last_touches(lists)
    exits: list[tuple[Wait, ...]] = []
    readers: list[tuple[Wait, ...]] = []
    for rank in range(size):
        wanted = list(buffers[rank].items()) + [(peer, 0) for peer in scratch[rank]]
        exits.append(_fewest(wanted, clocks[rank], done)[0])
        readers.append(_fewest(scratch[rank].items(), clocks[rank], done)[0])
    return _finish(done, exits, readers)


def _fewest(wanted: Iterable[tuple[int, int]], clock: Clock, done: list[list[_Done]]) -> tuple[tuple[Wait, ...], Clock]:
    """Of the wanted (peer, count), those implied neither by the clock nor by others; and the clock after them.

    If one of two steps implies the other, it is deeper: so the deepest are taken first.
    """
    open_waits = [(peer, count) for peer, count in set(wanted) if clock[peer] < count]
    if not open_waits:
        return (), clock
    open_waits.sort(key=lambda wait: (-done[wait[0]][wait[1] - 1].lowered.depth if wait[1] else 0, wait))
    waits = []
    for peer, count in open_waits:
        if clock[peer] >= count:
            continue
        waits.append(Wait(peer, count))
        if count:
            known = done[peer][count - 1].clock
            clock = list(map(max, clock, known))
        else:
            clock = clock.copy()
        clock[peer] = count
    return tuple(waits), clock


def _last_touches(lists: list[list[LoweredStep]]) -> tuple[list[dict[int, int]], list[dict[int, int]]]:
    """For each rank, the count of each peer's last step that accesses its buffers, and that reads its scratch."""
    buffers: list[dict[int, int]] = [{} for _ in lists]
    scratch: list[dict[int, int]] = [{} for _ in lists]
    for rank, mine in enumerate(lists):
        for count, step in enumerate(mine, start=1):
            for source in step.sources:
                if source.rank != rank:
                    (buffers if source.place < 0 else scratch)[source.rank][rank] = count
            for target in step.targets:
                if target.rank != rank:
                    buffers[target.rank][rank] = count
    return buffers, scratch


def _finish(
    done: list[list[_Done]], exits: list[tuple[Wait, ...]], readers: list[tuple[Wait, ...]]
) -> tuple[RankSchedule, ...]:
    """Freeze everything, marking the steps that a rank waits for."""
    waits = [wait for mine in done for step in mine for wait in step.waits]
    for more in exits + readers:
        waits.extend(more)
    consumed = {(wait.peer, wait.count) for wait in waits}
    ranks = []
    for rank, mine in enumerate(done):
        steps = tuple(
            Step(
                step.lowered.chunk,
                tuple(step.lowered.sources),
                tuple(step.lowered.targets),
                step.waits,
                step.lowered.complete,
                (rank, count) in consumed,
                step.lowered.line,
            )
            for count, step in enumerate(mine, start=1)
        )
        ranks.append(RankSchedule(steps, exits[rank], readers[rank]))
    return tuple(ranks)
