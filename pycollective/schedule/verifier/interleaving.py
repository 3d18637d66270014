"""Proof that a schedule is free of races and deadlocks, at any speed of the ranks.

Steps of different ranks are ordered by the emitted waits only. All ranks run two calls back to back, several tiles
each, with vector clocks: waiting for a step adds what its rank knew when it published that step, no more. Two accesses
to the same memory, one of them a write, must be ordered by the clocks. Since a wait is satisfied by one particular
publication and never by chance, one run covers all interleavings.

Other checks:
  - before a rank enters and after it leaves, the caller may do anything with its input and output;
  - a slot of scratch is reused only after its owner's `readers` waits and what it knew at the end of the tile that used
    it last, not thanks to the tiles in between (they may belong to another collective).

Between hosts, the receiver gets to know what the sender knew when it sent a message. The message is written to its
place at any time after it has been sent and its destination posted: only what was known at both can come before. It is
known to have arrived when the recv step is known to have completed; until then its source must not be overwritten in
the same tile. (In later tiles, and at the end of the call, a rank waits until the link has taken its messages.) As
several tiles are in progress at once, a rank may learn of one from another: calls of one tile are proved as well.
"""

from __future__ import annotations

from collections.abc import Iterator

from pycollective.errors import VerificationError
from pycollective.schedule.collectives import COLLECTIVES
from pycollective.schedule.compiler.schedule import Placement, Schedule
from pycollective.schedule.compiler.steps import RECV, Wait
from pycollective.schedule.verifier.accesses import Accesses
from pycollective.schedule.verifier.progress import Clock, Deliveries, Progress, join, step_name

CALLS = 2


def check_interleavings(schedule: Schedule) -> list[tuple[int, int]]:
    """Prove that no interleaving races or deadlocks.

    Returns:
        The steps of one tile as (rank, index), in an order that respects all waits.

    Raises:
        VerificationError: a race or a deadlock, naming rank, chunk and the steps in conflict.
    """
    slots = max(2, schedule.depth)
    order = _Run(schedule, slots, slots + 1).run()
    if schedule.hosts:
        _Run(schedule, slots, 1).run()
    return order


class _Run:
    def __init__(self, schedule: Schedule, slots: int, tiles: int) -> None:
        self.schedule = schedule
        self.slots = slots
        self.tiles = tiles
        self.progress = Progress(schedule, tiles)
        self.deliveries = Deliveries(schedule)
        self.accesses = Accesses(self.progress, self.deliveries, slots)
        self.last_reads = _last_reads(schedule)
        self.slot_ends: dict[tuple[int, int], tuple[int, Clock]] = {}  # by (owner, slot): base of the tile, clock
        self.order: list[tuple[int, int]] = []

    def run(self) -> list[tuple[int, int]]:
        """Let every rank advance as far as possible, until all have finished or none can advance."""
        ranks = {rank: self.play(rank) for rank in range(self.schedule.size)}
        blocked: dict[int, tuple[int | None, Wait]] = {}
        while ranks:
            self.progress.moved = False
            for rank in list(ranks):
                waiting = next(ranks[rank], None)
                if waiting is None:
                    del ranks[rank]
                else:
                    blocked[rank] = waiting
            if ranks and not self.progress.moved:
                stuck = "; ".join(self.describe_wait(rank, *blocked[rank]) for rank in ranks)
                steps = [(rank, index) for rank in ranks if (index := blocked[rank][0]) is not None]
                raise VerificationError(
                    f"{self.schedule.title}: deadlock: {stuck}", [self.schedule.line(*step) for step in steps]
                )
        return self.order

    def play(self, rank: int) -> Iterator[tuple[int | None, Wait]]:
        """The actions of one rank in all calls. Yields when it is blocked: (the step or None, what it waits for)."""
        mine, stride = self.schedule.ranks[rank], self.schedule.stride
        one_way = COLLECTIVES[self.schedule.collective].one_way and self.schedule.placement is Placement.STAGED
        exit_waits = () if one_way and not self.schedule.hosts else mine.exit_waits  # small calls are left early
        for call in range(CALLS):
            base = call * self.progress.call_span
            self.progress.publish(rank, base)
            for iteration in range(self.progress.iterations):
                if iteration < self.tiles:
                    yield from self.open_tile(rank, call, iteration)
                for index, step in enumerate(mine.steps):
                    tile = iteration - step.lag
                    if not 0 <= tile < self.tiles:
                        continue
                    counter = base + iteration * stride + index + 1
                    yield from self.await_step(rank, index, call, tile)
                    self.accesses.touch(rank, index, call, tile, counter)
                    if call == tile == 0:
                        self.order.append((rank, index))
                    self.progress.publish(rank, counter)
                    self.end_tile(rank, tile, base + tile * stride)
            for wait in exit_waits:
                while not self.progress.learn(rank, wait, base, base + (self.tiles - 1) * stride):
                    yield None, wait
            self.accesses.leave(rank, call)

    def open_tile(self, rank: int, call: int, tile: int) -> Iterator[tuple[int | None, Wait]]:
        """Wait for the slot, and give early messages their destinations."""
        yield from self.reuse_slot(rank, tile % self.slots)
        self.end_tile(rank, tile, call * self.progress.call_span + tile * self.schedule.stride)
        for step in self.schedule.ranks[rank].steps:
            if step.early:
                self.deliveries.post(self.deliveries.message(rank, step, call, tile), self.progress.now(rank))

    def end_tile(self, rank: int, tile: int, tile_base: int) -> None:
        """What the rank knows after its last step of the tile so far."""
        self.slot_ends[rank, tile % self.slots] = tile_base, self.progress.clocks[rank]

    def await_step(self, rank: int, index: int, call: int, tile: int) -> Iterator[tuple[int, Wait]]:
        """The waits of a step, and of a recv its message."""
        step = self.schedule.ranks[rank].steps[index]
        base = call * self.progress.call_span
        if step.kind == RECV:
            message = self.deliveries.message(rank, step, call, tile)
            self.deliveries.post(message, self.progress.now(rank))
            while not self.deliveries.received(message):
                yield index, step.waits[0]
        for wait in step.waits:
            while not self.progress.learn(rank, wait, base, base + tile * self.schedule.stride):
                yield index, wait

    def reuse_slot(self, rank: int, slot: int) -> Iterator[tuple[int | None, Wait]]:
        """Wait for the readers of the slot's last use, and check that this covers every rank that read it."""
        last_use = self.slot_ends.get((rank, slot))
        if last_use is None:
            return
        tile_base, known = last_use
        for reader in self.schedule.ranks[rank].readers:
            while not self.progress.learn(rank, reader, tile_base, tile_base):
                yield None, reader
            counter = tile_base + reader.count
            known = join(known, self.progress.published[reader.peer][counter], reader.peer, counter)
        for peer, count in self.last_reads[rank].items():
            counter = tile_base + count
            if known[peer] < counter:
                raise VerificationError(
                    f"{self.schedule.title}: race: rank {rank} uses a slot of its scratch again while"
                    f" {self.progress.name(peer, counter)} may still read it",
                    [self.progress.line(peer, counter)],
                )

    def describe_wait(self, rank: int, index: int | None, wait: Wait) -> str:
        where = f"rank {rank} after its steps" if index is None else step_name(self.schedule, rank, index)
        what = f"finish step {self.schedule.index(wait.count)}" if wait.count else "enter"
        return f"{where} waits for rank {wait.peer} to {what}"


def _last_reads(schedule: Schedule) -> list[dict[int, int]]:
    """List for each owner the count of each peer's last step that reads its scratch."""
    found: list[dict[int, int]] = [{} for _ in schedule.ranks]
    for rank, mine in enumerate(schedule.ranks):
        for index, step in enumerate(mine.steps):
            for source in step.sources:
                if source.place >= 0 and source.rank != rank and step.kind != RECV:
                    found[source.rank][rank] = step.lag * schedule.stride + index + 1
    return found
