"""Finds data races of compiled schedules as a GPU runs them: every access of every thread, by vector clocks.

One channel of each rank, a block of a few threads, executes several calls of several tiles as csrc/executor/execute.h
and csrc/executor/cuda/kernels/group.h do; what changes there must change here. Before and after each call the program
reads and writes its arrays, in the order of the stream. A barrier orders the threads of a block; a wait is ordered
after the first store of the counter that satisfies it, as test_litmus.py proves of flags. Two accesses of a place, one
of them a write, that are not ordered by these are a race.

Vector clocks: L. Lamport, "Time, Clocks, and the Ordering of Events in a Distributed System", 1978,
https://doi.org/10.1145/359545.359563; for races, C. Flanagan and S. Freund, "FastTrack", PLDI 2009,
https://doi.org/10.1145/1542476.1542490.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field

from pycollective.schedule.compiler.schedule import Placement, Schedule
from pycollective.schedule.compiler.steps import IN, Step, Wait

ENTRIES = 8
"""Calls whose entries a mailbox holds: kRing."""


class Race(Exception):
    """Two accesses that nothing orders, or a rank that waits forever."""


@dataclass
class Place:
    """The accesses of a place since its last write: the clock of the thread at the write, and of each reader."""

    writer: int = -1
    written: int = 0
    readers: dict[int, int] = field(default_factory=dict)


class Memory:
    """What the threads of all blocks have done, and what each knows of the others. A thread is rank * lanes + lane."""

    def __init__(self, ranks: int, lanes: int) -> None:
        self.lanes = lanes
        self._clocks = [[0] * (ranks * lanes) for _ in range(ranks * lanes)]
        for thread, clock in enumerate(self._clocks):
            clock[thread] = 1
        self._places: dict[Hashable, Place] = {}
        self._stores: dict[tuple[int, int], list[tuple[int, list[int]]]] = {}  # (value, clock) of each counter

    def barrier(self, rank: int) -> None:
        block = range(rank * self.lanes, (rank + 1) * self.lanes)
        joined = [max(times) for times in zip(*(self._clocks[thread] for thread in block), strict=True)]
        for thread in block:
            self._clocks[thread] = [*joined]
            self._clocks[thread][thread] += 1

    def read(self, thread: int, at: Hashable) -> None:
        place = self._places.setdefault(at, Place())
        self._order(thread, place.writer, place.written, at)
        place.readers[thread] = self._clocks[thread][thread]

    def write(self, thread: int, at: Hashable) -> None:
        place = self._places.setdefault(at, Place())
        self._order(thread, place.writer, place.written, at)
        for reader, when in place.readers.items():
            self._order(thread, reader, when, at)
        self._places[at] = Place(thread, self._clocks[thread][thread])

    def _order(self, thread: int, other: int, when: int, at: Hashable) -> None:
        if other >= 0 and self._clocks[thread][other] < when:
            one, two = divmod(thread, self.lanes), divmod(other, self.lanes)
            raise Race(f"{at}: (rank, thread) {one} is not ordered after {two}")

    def release(self, thread: int, owner: int, value: int) -> None:
        """Store a counter of this thread's rank in `owner`'s mailbox."""
        self._stores.setdefault((owner, thread // self.lanes), []).append((value, [*self._clocks[thread]]))
        self._clocks[thread][thread] += 1

    def acquire(self, thread: int, peer: int, target: int) -> bool:
        """Load a peer's counter; False: it has not reached the target."""
        for value, clock in self._stores.get((thread // self.lanes, peer), ()):
            if value >= target:
                self._clocks[thread] = [max(times) for times in zip(self._clocks[thread], clock, strict=True)]
                return True
        return False


class Rank:
    """A rank's block, in consecutive calls.

    Attributes:
        without: what of execute.h is left out, to see that it is needed: "barriers of a step", "barrier of gather",
            "barrier before publish", "exit waits", "guard", or a pair of a step's index and the index of its wait.
    """

    def __init__(self, memory: Memory, schedule: Schedule, rank: int, without: Collection[object]) -> None:
        self._memory, self._schedule, self._rank = memory, schedule, rank
        self._mine, self.without = schedule.ranks[rank], without
        self._lanes = memory.lanes
        self._base, self._call, self._slot, self._turn = 1, 0, 0, 0
        self._held: dict[tuple[int, int], int] = {}  # what guard() waits for, by slot and peer

    def run(self, calls: int, tiles: int) -> Iterator[None]:
        """Execute the calls; yields wherever another rank may run."""
        for self._call in range(1, calls + 1):
            self._use_arrays(tiles)
            yield from self._begin()
            for tile in range(tiles):
                yield from self._tile(tile, (self._slot + tile) % 2)
            last = self._base + (tiles - 1) * self._schedule.stride
            if "exit waits" not in self.without:
                yield from self._await(self._mine.exit_waits, last)
            self._barrier()
            self._base += tiles * self._schedule.stride + 1
            if self._schedule.cells > 0:
                self._slot = (self._slot + tiles) % 2
        self._use_arrays(tiles)

    def _thread(self, lane: int) -> int:
        return self._rank * self._lanes + lane % self._lanes

    def _barrier(self, *names: str) -> None:
        if not any(name in self.without for name in names):
            self._memory.barrier(self._rank)

    def _use_arrays(self, tiles: int) -> None:
        """What the program does before and after a call, in the order of the stream."""
        self._barrier()
        touched = {
            (end.place, step.chunk)
            for rank in self._schedule.ranks
            for step in rank.steps
            for end in (*step.sources, *step.targets)
            if end.place < 0 and end.rank == self._rank
        }
        for place, chunk in touched:
            for tile in range(tiles):
                for element in range(self._lanes):
                    at = self._place(self._rank, place, chunk, tile, 0, element)
                    self._memory.read(self._thread(0), at)
                    self._memory.write(self._thread(0), at)
        self._barrier()

    def _place(self, rank: int, place: int, chunk: int, tile: int, slot: int, element: int) -> Hashable:
        if place >= 0:
            return rank, "scratch", slot, place, element
        name = "input" if place == IN and not self._schedule.placement.inplace else "output"
        return rank, name, chunk, tile, element

    def _begin(self) -> Iterator[None]:
        """CudaGroup::begin."""
        peers = [peer for peer in range(self._schedule.size) if peer != self._rank]
        for peer in peers:
            self._memory.write(self._thread(peer), ("entry", peer, self._rank, self._call % ENTRIES))
            self._memory.release(self._thread(peer), peer, self._base)
        if self._schedule.placement is not Placement.STAGED:  # with windows, ranks wait for one another
            for peer in peers:
                yield from self._await_one(peer, peer, self._base)
            self._barrier()
        self._barrier()

    def _await_one(self, lane: int, peer: int, target: int) -> Iterator[None]:
        """CudaGroup::await."""
        while not self._memory.acquire(self._thread(lane), peer, target):
            yield
        if self._base <= target <= self._base + self._schedule.stride:  # same_call()
            self._memory.read(self._thread(lane), ("entry", self._rank, peer, self._call % ENTRIES))

    def _await(self, waits: Collection[Wait], base: int) -> Iterator[None]:
        for lane, wait in enumerate(waits):
            yield from self._await_one(lane, wait.peer, self._base if wait.count == 0 else base + wait.count)

    def _guard(self, slot: int) -> Iterator[None]:
        for peer in range(self._schedule.size):
            at = ("guard", self._rank, slot, peer)
            self._memory.read(self._thread(peer), at)
            if (slot, peer) in self._held:
                yield from self._await_one(peer, peer, self._held.pop((slot, peer)))
                self._memory.write(self._thread(peer), at)

    def _tile(self, tile: int, slot: int) -> Iterator[None]:
        base = self._base + tile * self._schedule.stride
        if self._schedule.cells > 0:
            if "guard" not in self.without:
                yield from self._guard(slot)
            self._barrier()
        for lane, reader in enumerate(self._mine.readers):
            self._held[slot, reader.peer] = base + reader.count
            self._memory.write(self._thread(lane), ("guard", self._rank, slot, reader.peer))
        for number, step in enumerate(self._mine.steps):
            waits = [wait for i, wait in enumerate(step.waits) if (number, i) not in self.without]
            yield from self._await(waits, base)
            if step.waits:
                self._barrier("barriers of a step")
            self._combine(step, number, tile, slot)
            self._turn = 1 - self._turn
            if step.consumed:
                self._barrier("barrier before publish")
                for lane, consumer in enumerate(self._schedule._consumers[self._rank].get(number, ())):
                    self._memory.release(self._thread(lane), consumer, base + number + 1)
            yield

    def _combine(self, step: Step, number: int, tile: int, slot: int) -> None:
        """CudaGroup::combine; each element by another thread in every step, as threads share elements differently."""
        operands = [("operand", self._rank, self._turn, i) for i in range(len(step.sources) + len(step.targets))]
        for lane, operand in enumerate(operands):
            self._memory.write(self._thread(lane), operand)
        self._barrier("barriers of a step", "barrier of gather")
        alone = {(source.rank, source.place) for source in step.sources[:1]} if len(step.sources) == 1 else set()
        targets = [target for target in step.targets if (target.rank, target.place) not in alone]
        for element in range(self._lanes if targets else 0):
            thread = self._thread(element + number)
            for operand in operands:
                self._memory.read(thread, operand)
            for source in step.sources:
                self._memory.read(thread, self._place(source.rank, source.place, step.chunk, tile, slot, element))
            for target in targets:
                self._memory.write(thread, self._place(target.rank, target.place, step.chunk, tile, slot, element))


def check(schedule: Schedule, without: Collection[object] = (), only: int | None = None) -> None:
    """Raise Race if the schedule has one, or if a rank waits forever.

    Args:
        without: see Rank; `only`: of this rank.
    """
    lanes, tiles, calls = 2, 3, 3
    memory = Memory(schedule.size, lanes)
    running = [
        Rank(memory, schedule, rank, without if only in (None, rank) else ()).run(calls, tiles)
        for rank in range(schedule.size)
    ]
    idle = 0
    while running:
        before, idle = [*running], idle + 1
        for rank in before:
            if next(rank, running) is running:
                running.remove(rank)
                idle = 0
        if idle > calls * tiles * (schedule.stride + 4) * schedule.size:
            raise Race(f"{schedule.title}: {len(running)} ranks wait forever")
