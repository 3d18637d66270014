"""Proof that a schedule is free of races and deadlocks, at any speed of the ranks.

Steps of different ranks are ordered by the emitted waits only. All ranks run two calls back to back, several tiles
each, with vector clocks: waiting for a step adds what its rank knew when it published that step, no more. Two accesses
to the same memory, one of them a write, must be ordered by the clocks. Since a wait is satisfied by one particular
publication and never by chance, one run covers all interleavings.

Other checks:
  - before a rank enters and after it leaves, the caller may do anything with its input and output;
  - a slot of scratch is reused only after its owner's `readers` waits and what it knew at the end of the tile that used
    it last, not thanks to the tiles in between (they may belong to another collective).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pycollective.errors import VerificationError
from pycollective.schedule.compiler.schedule import IN, OUT, Schedule, Wait, describe_step, place_name

CALLS = 2
TILES = 3
SLOTS = 2

Clock = list[int]
"""For each rank, the value that its progress counter is known to have reached; immutable."""

Memory = tuple[int, int, int, int]
"""(rank, place, chunk, tile) for buffers, (rank, cell, -1, slot) for scratch."""


@dataclass(slots=True)
class _Accesses:
    """Accesses to one piece of memory: the last write, and the reads since; as (rank, counter)."""

    write: tuple[int, int] = (-1, -1)
    reads: dict[int, int] = field(default_factory=dict)


def check_interleavings(schedule: Schedule) -> list[tuple[int, int]]:
    """Prove that no interleaving races or deadlocks.

    Returns:
        The steps of one tile as (rank, index), in an order that respects all waits.

    Raises:
        VerificationError: a race or a deadlock, naming rank, chunk and the steps in conflict.
    """
    return _Run(schedule).run()


class _Run:
    def __init__(self, schedule: Schedule) -> None:
        size = schedule.size
        self.schedule = schedule
        self.call_span = TILES * schedule.stride + 1  # counter increment per call, including entry
        self.clocks: list[Clock] = [[-1] * size for _ in range(size)]
        self.published: list[dict[int, Clock]] = [{} for _ in range(size)]
        self.left = [-1] * size  # the last call that a rank has left
        self.memory: dict[Memory, _Accesses] = {}
        self.buffer_touches: list[dict[int, int]] = [{} for _ in range(size)]  # by owner: counter of each peer
        self.slot_reads: dict[tuple[int, int], dict[int, int]] = {}  # by (owner, slot): counter of each peer
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
        mine = self.schedule.ranks[rank]
        for call in range(CALLS):
            base = call * self.call_span
            self.publish(rank, base)
            for tile in range(TILES):
                tile_base = base + tile * self.schedule.stride
                yield from self.reuse_slot(rank, tile % SLOTS)
                for index, step in enumerate(mine.steps):
                    for wait in step.waits:
                        while not self.learn(rank, wait, base, tile_base):
                            yield index, wait
                    self.touch(rank, index, call, tile, tile_base + index + 1)
                    if call == tile == 0:
                        self.order.append((rank, index))
                    self.publish(rank, tile_base + index + 1)
                self.slot_ends[rank, tile % SLOTS] = tile_base, self.clocks[rank]
            for wait in mine.exit_waits:
                while not self.learn(rank, wait, base, tile_base):
                    yield None, wait
            self.leave(rank, call)

    def publish(self, rank: int, counter: int) -> None:
        self.published[rank][counter] = self.clocks[rank]
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
        for peer, counter in self.slot_reads.pop((rank, slot), {}).items():
            if known[peer] < counter:
                raise VerificationError(
                    f"{self.schedule.title}: race: rank {rank} uses a slot of its scratch again while"
                    f" {self.name(peer, counter)} may still read it",
                    [self.line(peer, counter)],
                )

    def touch(self, rank: int, index: int, call: int, tile: int, counter: int) -> None:
        """The memory accesses of one step: all reads, then all writes."""
        step = self.schedule.ranks[rank].steps[index]
        for source in step.sources:
            accesses = self.access(rank, source.rank, source.place, step.chunk, call, tile, counter)
            self.check_order(rank, counter, accesses.write, source.rank, source.place)
            accesses.reads[rank] = counter
        for target in step.targets:
            accesses = self.access(rank, target.rank, target.place, step.chunk, call, tile, counter)
            self.check_order(rank, counter, accesses.write, target.rank, target.place)
            for read in accesses.reads.items():
                self.check_order(rank, counter, read, target.rank, target.place)
            accesses.write = rank, counter
            accesses.reads.clear()

    def access(self, rank: int, owner: int, place: int, chunk: int, call: int, tile: int, counter: int) -> _Accesses:
        """The record of a piece of memory; the owner of a buffer must be in the call."""
        if place >= 0:
            if owner != rank:
                self.slot_reads.setdefault((owner, tile % SLOTS), {})[rank] = counter
            key = owner, place, -1, tile % SLOTS
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
        if peer in (-1, rank) or self.clocks[rank][peer] >= peer_counter:
            return
        chunk = self.schedule.ranks[rank].steps[self.index(counter)].chunk
        raise VerificationError(
            f"{self.schedule.title}: race on chunk {chunk} of {place_name(owner, place)}:"
            f" nothing orders {self.name(peer, peer_counter)} and {self.name(rank, counter)}",
            [self.line(peer, peer_counter), self.line(rank, counter)],
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
        return f"{where} waits for rank {wait.peer} to {f'finish step {wait.count - 1}' if wait.count else 'enter'}"


def _join(one: Clock, other: Clock, peer: int, counter: int) -> Clock:
    """The clock of `one` after it has learned that `peer`, whose clock was `other`, has reached `counter`."""
    joined = list(map(max, one, other))
    joined[peer] = counter
    return joined
