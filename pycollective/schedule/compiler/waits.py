"""Last pass of the compiler: order each rank's steps, and turn dependencies into the minimum of waits.

A rank publishes one counter: the number of its completed steps. A vector clock for each rank holds what it knows of
every counter; waiting for a step adds all that was known when that step was published. Waits for what is already known
are dropped.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from pycollective.schedule.compiler.lowering import LoweredStep
from pycollective.schedule.compiler.schedule import RankSchedule, Step, Wait

UNKNOWN = -1

Clock = int
"""For each rank the number of steps known to be completed; 0: it has entered the call, UNKNOWN: not even that. See
Clocks."""


class Clocks:
    """Vector clocks packed in integers: operations on all ranks at once cost little more than on one.

    Each rank has a field of bits for the number minus UNKNOWN, and above it a guard bit, which is 0 in a clock.
    """

    def __init__(self, size: int, most: int) -> None:
        """`most`: the highest number of steps of a rank."""
        self._bits = (most - UNKNOWN).bit_length()
        self._field = (1 << self._bits) - 1
        self._width = self._bits + 1
        self._guards = sum(1 << (rank * self._width + self._bits) for rank in range(size))

    def when(self, rank: int, count: int) -> Clock:
        """The clock that knows of one rank's steps only."""
        return (count - UNKNOWN) << (rank * self._width)

    def knows(self, clock: Clock, rank: int, count: int) -> bool:
        """Whether a rank is known to have completed `count` steps."""
        return (clock >> (rank * self._width)) & self._field >= count - UNKNOWN

    def join(self, one: Clock, other: Clock) -> Clock:
        """What is known from either: the larger number of each field."""
        at_least = ((one | self._guards) - other) & self._guards  # the guard bits of fields that are larger in `one`
        return other ^ ((one ^ other) & (at_least - (at_least >> self._bits)))


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


def synchronize(lists: list[list[LoweredStep]], meets_next: bool = False) -> tuple[RankSchedule, ...]:
    """Each rank's steps with their waits, and the waits at the ends of call and slot.

    Args:
        lists: each rank's steps, in order.
        meets_next: before the call returns, a rank waits until the next rank has entered it. Needed if results do not
            depend on all ranks: otherwise ranks that make different calls might never compare them.
    """
    size = len(lists)
    waits = _Waits(lists)
    # A step depends only on steps of smaller depth, so in this order it follows those it waits for.
    for step in sorted((step for mine in lists for step in mine), key=lambda step: (step.depth, step.position)):
        waits.add_step(step)
    buffers, scratch = _last_touches(lists)
    exits: list[tuple[Wait, ...]] = []
    readers: list[tuple[Wait, ...]] = []
    for rank in range(size):
        met = [*scratch[rank], (rank + 1) % size] if meets_next and size > 1 else scratch[rank]
        exits.append(waits.at_end(rank, [*buffers[rank].items(), *((peer, 0) for peer in met)]))
        readers.append(waits.at_end(rank, scratch[rank].items()))
    return _finish(lists, waits.of, exits, readers)


class _Waits:
    """The waits of the steps so far, and what each rank knows after its latest."""

    def __init__(self, lists: list[list[LoweredStep]]) -> None:
        self._lists = lists
        self._clocks = Clocks(len(lists), max(map(len, lists)))
        self._known: list[Clock] = [0] * len(lists)
        self._published: list[list[Clock]] = [[] for _ in lists]  # what a peer gets to know by waiting for a step
        self._wait = functools.cache(Wait)
        self.of: list[list[tuple[Wait, ...]]] = [[] for _ in lists]

    def add_step(self, step: LoweredStep) -> None:
        """Every step that it depends on has been added before."""
        rank = step.rank
        wanted = {(before.rank, before.position + 1) for before in step.depends if before.rank != rank}
        wanted.update((peer, 0) for peer in step.entered)
        waits, known = self._fewest(wanted, self._known[rank])
        self._known[rank] = known
        self.of[rank].append(waits)
        self._published[rank].append(self._clocks.join(known, self._clocks.when(rank, len(self.of[rank]))))

    def at_end(self, rank: int, wanted: Iterable[tuple[int, int]]) -> tuple[Wait, ...]:
        """The waits of a rank that has executed all its steps."""
        return self._fewest(set(wanted), self._known[rank])[0]

    def _fewest(self, wanted: set[tuple[int, int]], clock: Clock) -> tuple[tuple[Wait, ...], Clock]:
        """Of the wanted (peer, count), those implied neither by the clock nor by others; and the clock after them.

        If one of two steps implies the other, it is deeper: so the deepest are taken first.
        """
        clocks = self._clocks
        left = [(peer, count) for peer, count in wanted if not clocks.knows(clock, peer, count)]
        if len(left) > 1:
            left.sort(key=self._deepest_first)
        waits = []
        for peer, count in left:
            if clocks.knows(clock, peer, count):
                continue
            waits.append(self._wait(peer, count))
            clock = clocks.join(clock, self._published[peer][count - 1] if count else clocks.when(peer, 0))
        return tuple(waits), clock

    def _deepest_first(self, wait: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        peer, count = wait
        return -self._lists[peer][count - 1].depth if count else 0, wait


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
    lists: list[list[LoweredStep]],
    waits: list[list[tuple[Wait, ...]]],
    exits: list[tuple[Wait, ...]],
    readers: list[tuple[Wait, ...]],
) -> tuple[RankSchedule, ...]:
    """Freeze everything, marking the steps that a rank waits for."""
    consumed = {(wait.peer, wait.count) for each in (*exits, *readers) for wait in each}
    consumed.update((wait.peer, wait.count) for mine in waits for each in mine for wait in each)
    ranks = []
    for rank, mine in enumerate(lists):
        steps = tuple(
            Step(
                step.chunk,
                tuple(step.sources),
                tuple(step.targets),
                before,
                step.complete,
                (rank, count) in consumed,
                step.weights,
                step.line,
            )
            for count, (step, before) in enumerate(zip(mine, waits[rank], strict=True), start=1)
        )
        ranks.append(RankSchedule(steps, exits[rank], readers[rank]))
    return tuple(ranks)
