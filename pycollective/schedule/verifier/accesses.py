"""Accesses to memory while a schedule is played: two to the same place, one of them a write, must be ordered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from pycollective.errors import VerificationError
from pycollective.schedule.compiler.schedule import Placement
from pycollective.schedule.compiler.steps import IN, OUT, RECV, SEND, Step, place_name
from pycollective.schedule.verifier.progress import Clock, Deliveries, Progress, join

Memory = tuple[int, int, int, int]
"""(rank, place, chunk, tile) for buffers, (rank, cell, -1, slot) for scratch."""


@dataclass(slots=True)
class _Record:
    """Accesses to one piece of memory: the last write, the reads since, as (rank, counter), and the last tile's sends.

    `sends`: (call, tile, index) of send steps of the owner.
    """

    write: tuple[int, int] = (-1, -1)
    reads: dict[int, int] = field(default_factory=dict)
    sends: list[tuple[int, int, int]] = field(default_factory=list)


class Accesses:
    """The accesses so far, in all of memory. One that `progress` does not order raises VerificationError: a race."""

    def __init__(self, progress: Progress, deliveries: Deliveries, slots: int) -> None:
        self.progress = progress
        self.schedule = progress.schedule
        self.may_alias = progress.schedule.placement is Placement.STAGED  # input and output may be one array
        self.deliveries = deliveries
        self.slots = slots
        self.memory: dict[Memory, _Record] = {}
        self.left = [-1] * self.schedule.size  # the last call that a rank has left
        self.buffer_touches: list[dict[int, int]] = [{} for _ in self.schedule.ranks]  # by owner: counter of each peer

    def touch(self, rank: int, index: int, call: int, tile: int, counter: int) -> None:
        """The memory accesses of one step: all reads, then all writes."""
        step = self.schedule.ranks[rank].steps[index]
        if step.kind == RECV:
            self.receive(rank, step, call, tile, counter)
            return
        clock = self.progress.clocks[rank]
        for source in step.sources:
            accesses = self.access(rank, source.rank, source.place, step.chunk, call, tile, counter)
            writer, written = accesses.write
            if clock[writer] < written and writer != rank:
                self.fail_order(rank, counter, accesses.write, source.rank, source.place)
            accesses.reads[rank] = counter
            if step.kind == SEND:
                accesses.sends = [send for send in accesses.sends if send[:2] == (call, tile)]
                accesses.sends.append((call, tile, index))
        if step.kind == SEND:
            self.deliveries.send(rank, index, call, tile, join(clock, clock, rank, counter))
            return
        for target in step.targets:
            accesses = self.access(rank, target.rank, target.place, step.chunk, call, tile, counter)
            for peer, before in (accesses.write, *accesses.reads.items()):
                if clock[peer] < before and peer != rank:
                    self.fail_order(rank, counter, (peer, before), target.rank, target.place)
            accesses.write = rank, counter
            accesses.reads.clear()
            if self.schedule.hosts:
                self.check_sources(rank, step, call, tile, counter, clock)

    def receive(self, rank: int, step: Step, call: int, tile: int, counter: int) -> None:
        """The write of a message: at the earliest when it has been sent and its destination is posted."""
        received = self.deliveries.received(self.deliveries.message(rank, step, call, tile))
        assert received is not None
        known = list(map(max, *received))
        place = step.targets[0].place
        self.check_sources(rank, step, call, tile, counter, known)
        for same in (place, IN) if self.may_alias and place == OUT else (place,):
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
            aliased = self.may_alias and target.place == OUT
            # A copy of the input to the output changes nothing if they are one array.
            copies = [source.place for source in step.sources] == [IN] and not step.complete
            for place in (OUT, IN) if aliased and not copies else (target.place,):
                sends = self.access(rank, target.rank, place, step.chunk, call, tile, counter).sends
                for send_call, send_tile, index in sends:
                    in_tile = (send_call, send_tile) == (call, tile)
                    if in_tile and not self.arrived(target.rank, index, tile, call, known):
                        before = target.rank, self.progress.counter(target.rank, index, call, tile)
                        self.fail_order(rank, counter, before, target.rank, target.place)

    def arrived(self, rank: int, index: int, tile: int, call: int, known: Clock) -> bool:
        """Return whether all messages of a send step are known to have arrived."""
        receivers = [target.rank for target in self.schedule.ranks[rank].steps[index].targets]
        counter, receipts = self.progress.counter, self.deliveries.receipts
        return all(known[peer] >= counter(peer, receipts[rank, index, peer], call, tile) for peer in receivers)

    def access(self, rank: int, owner: int, place: int, chunk: int, call: int, tile: int, counter: int) -> _Record:
        """The record of a piece of memory; the owner of a buffer must be in the call."""
        if place >= 0:
            key = owner, place, -1, tile % self.slots
        else:
            if owner != rank:
                entered = self.progress.clocks[rank][owner] >= call * self.progress.call_span
                if not entered or self.left[owner] >= call:
                    when = "has left" if entered else "may not have entered"
                    name = self.progress.name(rank, counter)
                    raise VerificationError(
                        f"{self.schedule.title}: race on chunk {chunk} of {place_name(owner, place)}:"
                        f" {name} touches it when rank {owner} {when} the call",
                        [self.progress.line(rank, counter)],
                    )
                self.buffer_touches[owner][rank] = counter
            if place == IN and self.schedule.placement.inplace:
                place = OUT
            key = owner, place, chunk, tile
        accesses = self.memory.get(key)
        if accesses is None:
            accesses = self.memory[key] = _Record()
        return accesses

    def fail_order(self, rank: int, counter: int, before: tuple[int, int], owner: int, place: int) -> NoReturn:
        chunk = self.schedule.ranks[rank].steps[self.progress.index(counter)].chunk
        raise VerificationError(
            f"{self.schedule.title}: race on chunk {chunk} of {place_name(owner, place)}:"
            f" nothing orders {self.progress.name(*before)} and {self.progress.name(rank, counter)}",
            [self.progress.line(*before), self.progress.line(rank, counter)],
        )

    def leave(self, rank: int, call: int) -> None:
        """Return the buffers to the caller: every access by a peer must be known to have completed."""
        self.left[rank] = call
        for peer, counter in self.buffer_touches[rank].items():
            if self.progress.clocks[rank][peer] < counter:
                raise VerificationError(
                    f"{self.schedule.title}: race: rank {rank} leaves the call while"
                    f" {self.progress.name(peer, counter)} may still touch its buffers",
                    [self.progress.line(peer, counter)],
                )
        self.buffer_touches[rank].clear()
