"""Last pass of the compiler: order each rank's steps, and turn dependencies into the minimum of waits.

A rank publishes one counter: the number of its completed steps. A vector clock for each rank holds what it knows of
every counter; waiting for a step adds all that was known when that step was published. Waits for what is already known
are dropped.

A wait for another host's step is for the arrival of its message, and is never dropped: that the message has been sent
may be known before it arrives.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable

from pycollective.schedule.compiler.lowering import LoweredStep
from pycollective.schedule.compiler.schedule import RankSchedule
from pycollective.schedule.compiler.steps import COMBINE, RECV, SEND, Source, Step, Wait

UNKNOWN = -1

Clock = int
"""For each rank the number of steps known to be completed; 0: it has entered the call, UNKNOWN: not even that. See
VectorClocks."""


class VectorClocks:
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
        """Return whether a rank is known to have completed `count` steps."""
        return (clock >> (rank * self._width)) & self._field >= count - UNKNOWN

    def join(self, one: Clock, other: Clock) -> Clock:
        """What is known from either: the larger number of each field."""
        at_least = ((one | self._guards) - other) & self._guards  # the guard bits of fields that are larger in `one`
        return other ^ ((one ^ other) & (at_least - (at_least >> self._bits)))


def order_steps(steps: list[LoweredStep], size: int) -> list[list[LoweredStep]]:
    """The list of each rank: by lag, then by depth, so that steps start as early as possible.

    Within a depth there are no dependencies. There, sends come first and receipts last, and of the other steps copies
    from peers come last, the nearest following rank's first, so that the ranks do not all read from the same peer at
    once.
    """
    lists: list[list[LoweredStep]] = [[] for _ in range(size)]
    for step in steps:
        lists[step.rank].append(step)
    for mine in lists:
        mine.sort(key=lambda step: (step.lag, step.depth, _distance(step, size)))
        for position, step in enumerate(mine):
            step.position = position
    return lists


def _distance(step: LoweredStep, size: int) -> int:
    if step.kind == SEND:
        return -1
    distance = 0 if len(step.sources) > 1 else (step.sources[0].rank - step.rank) % size
    return distance + size if step.kind == RECV else distance


def synchronize(waits: Waits, neighbours: list[int] | None = None) -> tuple[RankSchedule, ...]:
    """Each rank's steps with their waits, and the waits at the ends of call and slot.

    `neighbours`: for each rank, one of its host that must have entered the call before the rank returns. Needed if
    results do not depend on all ranks: otherwise ranks that make different calls might never compare them.
    """
    lists = waits.lists
    buffers, scratch = _last_touches(lists)
    exits: list[tuple[Wait, ...]] = []
    readers: list[tuple[Wait, ...]] = []
    for rank in range(len(lists)):
        met = list(scratch[rank]) if neighbours is None else [*scratch[rank], neighbours[rank]]
        entered = ((peer, 0) for peer in met if peer != rank)
        exits.append(waits.at_end(rank, [*buffers[rank].items(), *entered]))
        readers.append(waits.at_end(rank, scratch[rank].items()))
    return _finish(waits, exits, readers)


class Waits:
    """The waits of all steps, and what each rank knows after each of its steps, which `lists` has in order."""

    def __init__(self, lists: list[list[LoweredStep]]) -> None:
        self.lists = lists
        self.stride = max(1, *map(len, lists))
        self.of: list[list[tuple[Wait, ...]]] = [[] for _ in lists]
        self._clocks = VectorClocks(len(lists), max(map(len, lists)))
        self._known: list[Clock] = [0] * len(lists)
        self._published: list[list[Clock]] = [[] for _ in lists]  # what a peer gets to know by waiting for a step
        self._wait = functools.cache(Wait)
        # A step depends only on steps of smaller depth and no larger lag: in this order it follows those it waits for.
        for step in sorted(itertools.chain(*lists), key=lambda step: (step.lag, step.depth, step.position)):
            self._add_step(step)

    def knows(self, step: LoweredStep, other: LoweredStep) -> bool:
        """Return whether it is known, when `step` is executed, that `other` has completed."""
        return self._clocks.knows(self._published[step.rank][step.position], other.rank, other.position + 1)

    def count(self, step: LoweredStep) -> int:
        """What a Wait for the step contains."""
        return step.lag * self.stride + step.position + 1

    def at_end(self, rank: int, wanted: Iterable[tuple[int, int]]) -> tuple[Wait, ...]:
        """The waits of a rank that has executed all its steps."""
        return self._fewest(set(wanted), self._known[rank])[0]

    def _add_step(self, step: LoweredStep) -> None:
        rank, known = step.rank, self._known[step.rank]
        if step.message is not None:
            sender, position = step.message.rank, step.message.position
            known = self._clocks.join(known, self._published[sender][position])
            waits: tuple[Wait, ...] = (self._wait(sender, self.count(step.message)),)
        else:
            wanted = {(before.rank, before.position + 1) for before in step.depends if before.rank != rank}
            wanted.update((peer, 0) for peer in step.entered)
            waits, known = self._fewest(wanted, known)
        self._known[rank] = known
        self.of[rank].append(waits)
        self._published[rank].append(self._clocks.join(known, self._clocks.when(rank, len(self.of[rank]))))

    def _fewest(self, wanted: set[tuple[int, int]], clock: Clock) -> tuple[tuple[Wait, ...], Clock]:
        """Reduce the wanted (peer, steps) to those that neither the clock nor others imply; also the clock after them.

        If one of two steps implies the other, it is deeper, or a later one of the same rank: these are taken first.
        """
        clocks = self._clocks
        left = [(peer, steps) for peer, steps in wanted if not clocks.knows(clock, peer, steps)]
        if len(left) > 1:
            left.sort(key=self._deepest_first)
        waits = []
        for peer, steps in left:
            if clocks.knows(clock, peer, steps):
                continue
            waits.append(self._wait(peer, self.count(self.lists[peer][steps - 1]) if steps else 0))
            clock = clocks.join(clock, self._published[peer][steps - 1] if steps else clocks.when(peer, 0))
        return tuple(waits), clock

    def _deepest_first(self, wanted: tuple[int, int]) -> tuple[int, int, int, int]:
        peer, steps = wanted
        if not steps:
            return 0, 0, peer, 0
        step = self.lists[peer][steps - 1]
        return -step.lag, -step.depth, peer, -steps


def _last_touches(lists: list[list[LoweredStep]]) -> tuple[list[dict[int, int]], list[dict[int, int]]]:
    """List for each rank the number of each peer's last step that accesses its buffers, and that reads its scratch."""
    buffers: list[dict[int, int]] = [{} for _ in lists]
    scratch: list[dict[int, int]] = [{} for _ in lists]
    for rank, mine in enumerate(lists):
        for number, step in enumerate(mine, start=1):
            if step.kind != COMBINE:  # these access their own rank's memory
                continue
            for source in step.sources:
                if source.rank != rank:
                    (buffers if source.place < 0 else scratch)[source.rank][rank] = number
            for target in step.targets:
                if target.rank != rank:
                    buffers[target.rank][rank] = number
    return buffers, scratch


def _finish(waits: Waits, exits: list[tuple[Wait, ...]], readers: list[tuple[Wait, ...]]) -> tuple[RankSchedule, ...]:
    """Freeze everything, marking the steps that a rank of the same host waits for."""
    in_steps = zip(itertools.chain(*waits.lists), itertools.chain(*waits.of), strict=True)
    on_host = [*exits, *readers, *(each for step, each in in_steps if step.kind != RECV)]
    consumed = {(wait.peer, wait.count) for each in on_host for wait in each}
    ranks = []
    for rank, mine in enumerate(waits.lists):
        steps = tuple(
            Step(
                step.chunk,
                (Source(step.message.rank, waits.count(step.message)),) if step.message else tuple(step.sources),
                tuple(step.targets),
                before,
                step.complete,
                (rank, waits.count(step)) in consumed,
                step.weights,
                step.line,
                step.kind,
                step.lag,
                step.kind == RECV,  # see messages.py
            )
            for step, before in zip(mine, waits.of[rank], strict=True)
        )
        ranks.append(RankSchedule(steps, exits[rank], readers[rank]))
    return tuple(ranks)
