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
from dataclasses import dataclass, field
from typing import NoReturn

from pycollective.errors import VerificationError
from pycollective.schedule.compiler.schedule import (
    IN,
    OUT,
    RECV,
    SEND,
    Placement,
    Schedule,
    Step,
    Wait,
    describe_step,
    place_name,
)
from pycollective.schedule.verifier.deliveries import Clock, Deliveries

CALLS = 2

Memory = tuple[int, int, int, int]
"""(rank, place, chunk, tile) for buffers, (rank, cell, -1, slot) for scratch."""


@dataclass(slots=True)
class _Accesses:
    """Accesses to one piece of memory: the last write, the reads since, as (rank, counter), and the last tile's sends.

    `sends`: (call, tile, index) of send steps of the owner.
    """

    write: tuple[int, int] = (-1, -1)
    reads: dict[int, int] = field(default_factory=dict)
    sends: list[tuple[int, int, int]] = field(default_factory=list)


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
        size = schedule.size
        self.schedule = schedule
        self.slots = slots
        self.tiles = tiles
        self.iterations = tiles + schedule.depth - 1
        self.call_span = self.iterations * schedule.stride + 1  # counter increment per call, including entry
        self.deliveries = Deliveries(schedule)
        self.clocks: list[Clock] = [[-1] * size for _ in range(size)]
        self.published: list[dict[int, Clock]] = [{} for _ in range(size)]
        self.counters = [-1] * size  # the last one that a rank has published
        self.left = [-1] * size  # the last call that a rank has left
        self.memory: dict[Memory, _Accesses] = {}
        self.buffer_touches: list[dict[int, int]] = [{} for _ in range(size)]  # by owner: counter of each peer
        self.last_reads = _last_reads(schedule)
        self.slot_ends: dict[tuple[int, int], tuple[int, Clock]] = {}  # by (owner, slot): base of the tile, clock
        self.order: list[tuple[int, int]] = []
        self.moved = False

    def run(self) -> list[tuple[int, int]]:
        """Let every rank advance as far as possible, until all have finished or none can advance."""
        ranks = {rank: self.play(rank) for rank in range(self.schedule.size)}
        blocked: dict[int, tuple[int | None, Wait]] = {}
        while ranks:
            self.moved = False
            for rank in list(ranks):
                waiting = next(ranks[rank], None)
                if waiting is None:
                    del ranks[rank]
                else:
                    blocked[rank] = waiting
            if ranks and not self.moved:
                stuck = "; ".join(self.describe_wait(rank, *blocked[rank]) for rank in ranks)
                steps = [(rank, index) for rank in ranks if (index := blocked[rank][0]) is not None]
                raise VerificationError(
                    f"{self.schedule.title}: deadlock: {stuck}", [self.schedule.line(*step) for step in steps]
                )
        return self.order

    def play(self, rank: int) -> Iterator[tuple[int | None, Wait]]:
        """The actions of one rank in all calls. Yields when it is blocked: (the step or None, what it waits for)."""
        mine, stride = self.schedule.ranks[rank], self.schedule.stride
        for call in range(CALLS):
            base = call * self.call_span
            self.publish(rank, base)
            for iteration in range(self.iterations):
                if iteration < self.tiles:
                    yield from self.open_tile(rank, call, iteration)
                for index, step in enumerate(mine.steps):
                    tile = iteration - step.lag
                    if not 0 <= tile < self.tiles:
                        continue
                    counter = base + iteration * stride + index + 1
                    yield from self.await_step(rank, index, call, tile)
                    self.touch(rank, index, call, tile, counter)
                    if call == tile == 0:
                        self.order.append((rank, index))
                    self.publish(rank, counter)
                    self.end_tile(rank, tile, base + tile * stride)
            for wait in mine.exit_waits:
                while not self.learn(rank, wait, base, base + (self.tiles - 1) * stride):
                    yield None, wait
            self.leave(rank, call)

    def open_tile(self, rank: int, call: int, tile: int) -> Iterator[tuple[int | None, Wait]]:
        """Wait for the slot, and give early messages their destinations."""
        yield from self.reuse_slot(rank, tile % self.slots)
        self.end_tile(rank, tile, call * self.call_span + tile * self.schedule.stride)
        for step in self.schedule.ranks[rank].steps:
            if step.early:
                self.deliveries.post(self.deliveries.message(rank, step, call, tile), self.now(rank))

    def end_tile(self, rank: int, tile: int, tile_base: int) -> None:
        """What the rank knows after its last step of the tile so far."""
        self.slot_ends[rank, tile % self.slots] = tile_base, self.clocks[rank]

    def await_step(self, rank: int, index: int, call: int, tile: int) -> Iterator[tuple[int, Wait]]:
        """The waits of a step, and of a recv its message."""
        step = self.schedule.ranks[rank].steps[index]
        base = call * self.call_span
        if step.kind == RECV:
            message = self.deliveries.message(rank, step, call, tile)
            self.deliveries.post(message, self.now(rank))
            while not self.deliveries.received(message):
                yield index, step.waits[0]
        for wait in step.waits:
            while not self.learn(rank, wait, base, base + tile * self.schedule.stride):
                yield index, wait

    def now(self, rank: int) -> Clock:
        """What a rank knows, including its own progress."""
        return _join(self.clocks[rank], self.clocks[rank], rank, self.counters[rank])

    def publish(self, rank: int, counter: int) -> None:
        self.published[rank][counter] = self.clocks[rank]
        self.counters[rank] = counter
        self.moved = True

    def learn(self, rank: int, wait: Wait, base: int, tile_base: int) -> bool:
        """If the peer has published the awaited step, add what it knew then; nothing if that is known already."""
        counter = tile_base + wait.count if wait.count else base
        if self.clocks[rank][wait.peer] < counter:
            theirs = self.published[wait.peer].get(counter)
            if theirs is None:
                return False
            self.clocks[rank] = _join(self.clocks[rank], theirs, wait.peer, counter)
        return True

    def reuse_slot(self, rank: int, slot: int) -> Iterator[tuple[int | None, Wait]]:
        """Wait for the readers of the slot's last use, and check that this covers every rank that read it."""
        last_use = self.slot_ends.get((rank, slot))
        if last_use is None:
            return
        tile_base, known = last_use
        for reader in self.schedule.ranks[rank].readers:
            while not self.learn(rank, reader, tile_base, tile_base):
                yield None, reader
            counter = tile_base + reader.count
            known = _join(known, self.published[reader.peer][counter], reader.peer, counter)
        for peer, count in self.last_reads[rank].items():
            counter = tile_base + count
            if known[peer] < counter:
                raise VerificationError(
                    f"{self.schedule.title}: race: rank {rank} uses a slot of its scratch again while"
                    f" {self.name(peer, counter)} may still read it",
                    [self.line(peer, counter)],
                )

    def touch(self, rank: int, index: int, call: int, tile: int, counter: int) -> None:
        """The memory accesses of one step: all reads, then all writes."""
        step = self.schedule.ranks[rank].steps[index]
        if step.kind == RECV:
            self.receive(rank, step, call, tile, counter)
            return
        for source in step.sources:
            accesses = self.access(rank, source.rank, source.place, step.chunk, call, tile, counter)
            self.check_order(rank, counter, accesses.write, source.rank, source.place)
            accesses.reads[rank] = counter
            if step.kind == SEND:
                accesses.sends = [send for send in accesses.sends if send[:2] == (call, tile)]
                accesses.sends.append((call, tile, index))
        if step.kind == SEND:
            self.deliveries.send(rank, index, call, tile, _join(self.clocks[rank], self.clocks[rank], rank, counter))
            return
        for target in step.targets:
            accesses = self.access(rank, target.rank, target.place, step.chunk, call, tile, counter)
            self.check_order(rank, counter, accesses.write, target.rank, target.place)
            for read in accesses.reads.items():
                self.check_order(rank, counter, read, target.rank, target.place)
            accesses.write = rank, counter
            accesses.reads.clear()
            if self.schedule.hosts:
                self.check_sources(rank, step, call, tile, counter, self.clocks[rank])

    def receive(self, rank: int, step: Step, call: int, tile: int, counter: int) -> None:
        """The write of a message: at the earliest when it has been sent and its destination is posted."""
        received = self.deliveries.received(self.deliveries.message(rank, step, call, tile))
        assert received is not None
        known = list(map(max, *received))
        place = step.targets[0].place
        self.check_sources(rank, step, call, tile, counter, known)
        for same in (place, IN) if place == OUT else (place,):  # a staged call may have one array as input and output
            accesses = self.access(rank, rank, same, step.chunk, call, tile, counter)
            for peer, before in (accesses.write, *accesses.reads.items()):
                if peer >= 0 and known[peer] < before:
                    self.fail_order(rank, counter, (peer, before), rank, place)
        accesses = self.access(rank, rank, place, step.chunk, call, tile, counter)
        accesses.write = rank, counter
        accesses.reads.clear()

    def check_sources(self, rank: int, step: Step, call: int, tile: int, counter: int, known: Clock) -> None:
        """What a step overwrites must not be the source of a message that may still be on its way."""
        for target in step.targets:
            aliased = target.place == OUT and self.schedule.placement is Placement.STAGED
            # A copy of the input to the output changes nothing if they are one array.
            copies = [source.place for source in step.sources] == [IN] and not step.complete
            for place in (OUT, IN) if aliased and not copies else (target.place,):
                sends = self.access(rank, target.rank, place, step.chunk, call, tile, counter).sends
                for send_call, send_tile, index in sends:
                    if (send_call, send_tile) == (call, tile) and not self.arrived(
                        target.rank, index, tile, call, known
                    ):
                        before = target.rank, self.counter(target.rank, index, call, tile)
                        self.fail_order(rank, counter, before, target.rank, target.place)

    def arrived(self, rank: int, index: int, tile: int, call: int, known: Clock) -> bool:
        """Whether all messages of a send step are known to have arrived."""
        receivers = [target.rank for target in self.schedule.ranks[rank].steps[index].targets]
        receipts = [(receiver, self.deliveries.receipt(rank, index, receiver)) for receiver in receivers]
        return all(known[receiver] >= self.counter(receiver, which, call, tile) for receiver, which in receipts)

    def counter(self, rank: int, index: int, call: int, tile: int) -> int:
        """The counter value of a step of a tile."""
        iteration = tile + self.schedule.ranks[rank].steps[index].lag
        return call * self.call_span + iteration * self.schedule.stride + index + 1

    def access(self, rank: int, owner: int, place: int, chunk: int, call: int, tile: int, counter: int) -> _Accesses:
        """The record of a piece of memory; the owner of a buffer must be in the call."""
        if place >= 0:
            key = owner, place, -1, tile % self.slots
        else:
            if owner != rank:
                entered = self.clocks[rank][owner] >= call * self.call_span
                if not entered or self.left[owner] >= call:
                    when = "has left" if entered else "may not have entered"
                    name = self.name(rank, counter)
                    raise VerificationError(
                        f"{self.schedule.title}: race on chunk {chunk} of {place_name(owner, place)}:"
                        f" {name} touches it when rank {owner} {when} the call",
                        [self.line(rank, counter)],
                    )
                self.buffer_touches[owner][rank] = counter
            if place == IN and self.schedule.placement.inplace:
                place = OUT
            key = owner, place, chunk, tile
        accesses = self.memory.get(key)
        if accesses is None:
            accesses = self.memory[key] = _Accesses()
        return accesses

    def check_order(self, rank: int, counter: int, before: tuple[int, int], owner: int, place: int) -> None:
        peer, peer_counter = before
        if peer not in (-1, rank) and self.clocks[rank][peer] < peer_counter:
            self.fail_order(rank, counter, before, owner, place)

    def fail_order(self, rank: int, counter: int, before: tuple[int, int], owner: int, place: int) -> NoReturn:
        chunk = self.schedule.ranks[rank].steps[self.index(counter)].chunk
        raise VerificationError(
            f"{self.schedule.title}: race on chunk {chunk} of {place_name(owner, place)}:"
            f" nothing orders {self.name(*before)} and {self.name(rank, counter)}",
            [self.line(*before), self.line(rank, counter)],
        )

    def leave(self, rank: int, call: int) -> None:
        """Return the buffers to the caller: every access by a peer must be known to have completed."""
        self.left[rank] = call
        for peer, counter in self.buffer_touches[rank].items():
            if self.clocks[rank][peer] < counter:
                raise VerificationError(
                    f"{self.schedule.title}: race: rank {rank} leaves the call while"
                    f" {self.name(peer, counter)} may still touch its buffers",
                    [self.line(peer, counter)],
                )
        self.buffer_touches[rank].clear()

    def index(self, counter: int) -> int:
        """The index of the step for a counter value."""
        return (counter % self.call_span - 1) % self.schedule.stride

    def name(self, rank: int, counter: int) -> str:
        return self.name_step(rank, self.index(counter))

    def line(self, rank: int, counter: int) -> str:
        """ "file:line" of the statement that the step executes."""
        return self.schedule.line(rank, self.index(counter))

    def name_step(self, rank: int, index: int) -> str:
        return f"step {index} of rank {rank} ({describe_step(self.schedule.ranks[rank].steps[index])})"

    def describe_wait(self, rank: int, index: int | None, wait: Wait) -> str:
        where = f"rank {rank} after its steps" if index is None else self.name_step(rank, index)
        what = f"finish step {self.schedule.index(wait.count)}" if wait.count else "enter"
        return f"{where} waits for rank {wait.peer} to {what}"


def _last_reads(schedule: Schedule) -> list[dict[int, int]]:
    """For each owner, the count of each peer's last step that reads its scratch."""
    found: list[dict[int, int]] = [{} for _ in schedule.ranks]
    for rank, mine in enumerate(schedule.ranks):
        for index, step in enumerate(mine.steps):
            for source in step.sources:
                if source.place >= 0 and source.rank != rank and step.kind != RECV:
                    found[source.rank][rank] = step.lag * schedule.stride + index + 1
    return found


def _join(one: Clock, other: Clock, peer: int, counter: int) -> Clock:
    """The clock of `one` after it has learned that `peer`, whose clock was `other`, has reached `counter`."""
    joined = list(map(max, one, other))
    joined[peer] = counter
    return joined
