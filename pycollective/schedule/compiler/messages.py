"""The second pass of the compiler for ranks on several hosts: which values cross, and the steps that send and receive.

A value that is needed on another host crosses to it once: its rank sends it from where it is stored to one rank there,
from whose memory the other ranks of that host read it. It is received in the output of that rank if it is its result
and nobody else there needs it or they can read it there, otherwise in a cell. Raw contributions are sent from the
input. Within a host, the placement decides as if there were no other: outputs that peers can write hold what the
program stores in them.

In small calls, where messages cost more than bytes, the contributions that cross from one host to another travel
together: one rank sends those of its host, in one piece, to one rank of the other. See coalescing.py.

Every message has a place of its own that is free when its tile is opened, so that all receipts are early and none
blocks the messages behind it. Two things can prevent that. If the receiver or a peer may not have finished with the
output (which may be the input) when the sender sends, the message is received in a cell, from where it is copied. If a
rank overwrites what has been sent (an output, or an input that is also the output) before the message is known to have
arrived, the value is sent from a cell. Both are found by the clocks of the finished schedule; then it is made again,
avoiding them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pycollective.schedule.compiler.coalescing import CoalescedMessage, coalesced_messages
from pycollective.schedule.compiler.lowering import LoweredStep, Lowering
from pycollective.schedule.compiler.schedule import Placement
from pycollective.schedule.compiler.steps import IN, OUT, RECV, SEND, Source, Target
from pycollective.schedule.compiler.values import Value, ValueGraph
from pycollective.schedule.compiler.waits import Waits, order_steps
from pycollective.schedule.language.program import Program

TILES_IN_FLIGHT = 6
"""The largest lag that shorter chains of messages are given.  Measured on two busy cores, with tiles of 64 KiB: 1 MiB
on two hosts takes 10% less time; 64 MiB changes by less than the spread."""
Crossing = tuple[Value, int]
"""A value and a host to which it crosses."""


@dataclass(slots=True)
class _Avoided:
    """What has been found unsafe: values sent from a buffer, and crossings received in the output."""

    sent: set[Value] = field(default_factory=set)
    received: set[Crossing] = field(default_factory=set)


def across_hosts(program: Program, graph: ValueGraph, placement: Placement, pipelined: bool) -> Waits:
    """The steps of all ranks of several hosts, in order, with their waits.

    If `pipelined`, steps behind messages lag, by one tile or more per message; otherwise all steps of a tile are
    executed in one iteration, and contributions travel together.
    """
    avoided, found = _Avoided(), -1
    while True:
        steps = _MessageLowering(program, graph, placement, avoided, pipelined).run(graph)
        _lengthen_lags(steps)
        waits = Waits(order_steps(steps, program.size))
        _find_hazards(steps, waits, program.host_of, avoided)
        if found == (found := len(avoided.sent) + len(avoided.received)) or not found:
            return waits


def _lengthen_lags(steps: list[LoweredStep]) -> None:
    """Give a message several tiles' time to arrive if the chains of messages are short.

    While a rank is interrupted, the others then continue with the tiles that have arrived.
    """
    factor = TILES_IN_FLIGHT // max(1, 1, *(step.lag for step in steps))
    if factor > 1:
        for step in steps:
            step.lag *= factor


def _find_hazards(steps: list[LoweredStep], waits: Waits, host_of: tuple[int, ...], avoided: _Avoided) -> None:
    for step in steps:
        # What a recv's place held must not be in use any more when the message is sent.
        known_at = step.message or step
        for before in step.depends:
            if before is known_at:
                continue
            if before.kind == SEND:  # its source is overwritten
                safe = _copies_input(step, before) or all(waits.knows(known_at, each) for each in before.receipts)
            else:
                safe = step.message is None or waits.knows(known_at, before)
            if safe:
                continue
            if step.message is not None:
                assert step.value is not None
                avoided.received.add((step.value, host_of[step.rank]))
            else:
                assert before.value is not None
                avoided.sent.add(before.value)


def _copies_input(step: LoweredStep, send: LoweredStep) -> bool:
    """Return whether a step copies the input, which has been sent, to the output; it does nothing if they are one."""
    return send.sources[0].place == IN and [source.place for source in step.sources] == [IN] and not step.complete


class _MessageLowering(Lowering):
    """Extends the pass by messages: locations of values on other hosts."""

    def __init__(
        self, program: Program, graph: ValueGraph, placement: Placement, avoided: _Avoided, pipelined: bool
    ) -> None:
        super().__init__(program, placement)
        self._avoided = avoided
        self._pipelined = pipelined
        self._host = program.host_of
        self._hosts = program.hosts
        self._local = {rank: number for ranks in program.hosts for number, rank in enumerate(ranks)}
        self._received = [0] * program.size  # messages so far, by rank
        self._message: dict[Crossing, tuple[LoweredStep, int]] = {}  # the send step, and the receiver
        self._arrived: dict[Crossing, Target] = {}
        self._copies: dict[tuple[Value, int], list[Value]] = {}  # plain copies, by what they copy and their rank
        self._coalesced: list[CoalescedMessage] = []
        self._carried: dict[Value, set[int]] = {}  # the hosts to which a contribution crosses with others
        self._shared_here = set(avoided.sent)  # contributions that are in cells in any case
        for group in graph.groups:
            for value in group:
                if self._is_copy(value):
                    self._copies.setdefault((value.sources[0][0], value.rank), []).append(value)

    @staticmethod
    def _is_copy(value: Value) -> bool:
        return len(value.sources) == 1 and not (value.weights or value.complete)

    # What other hosts need

    def bring_in_all(self, values: list[Value]) -> None:
        if not self._pipelined:
            self._coalesced = coalesced_messages(values, self._host, self._hosts, self._needing)
        for message in self._coalesced:
            for value in message.values:
                self._carried.setdefault(value, set()).add(message.host)
                if value.rank != message.sender:
                    self._shared_here.add(value)
        # Those of which a contribution has the place from which it is sent only after `bring_in`.
        shared, inplace = self._shared_here, self._placement.inplace
        later = [each for each in self._coalesced if inplace or not shared.isdisjoint(each.values)]
        for message in self._coalesced:
            if message not in later:
                self._send_coalesced(message)
        super().bring_in_all(values)
        for message in later:
            self._send_coalesced(message)

    def bring_in(self, value: Value) -> None:
        later = self._placement.inplace or value in self._avoided.sent
        if not later:
            self._send(value)
        super().bring_in(value)
        if value in self._avoided.sent and value not in self._cell_of:
            source = super()._locate(value, value.rank, value.rank)
            self._copy(value, value.rank, source, [self._new_cell(value)])
        if later:
            self._send(value)

    def execute(self, value: Value) -> None:
        if not self._is_received(value):
            super().execute(value)

    def execute_together(self, group: list[Value]) -> None:
        if all(self._is_copy(value) for value in group):  # of one place, which none of them writes
            for value in group:
                self.execute(value)
        else:
            super().execute_together(group)

    def _may_write(self, value: Value, readers: dict[int, set[Value]]) -> bool:
        elsewhere = all(readers.get(rank, set()) <= {value} for rank in value.finals)
        return elsewhere and super()._may_write(value, readers)

    def _live_outputs(self, value: Value) -> list[int]:
        here = self._host[value.rank]
        return [rank for rank in super()._live_outputs(value) if self._host[rank] == here]

    def _needs_cell(self, value: Value, outputs: list[int]) -> bool:
        here = self._host[value.rank]
        if any(name not in outputs for reader, name in value.reads if self._host[reader] == here):
            return True
        sent = any(host != here for host in self._needing(value))
        return sent and (value.rank not in outputs or value in self._avoided.sent)

    def _copy_to_results(self, value: Value) -> None:
        self._send(value)
        for rank in value.finals:
            crossing = value, self._host[rank]
            if crossing in self._message and crossing not in self._arrived:
                receiver = self._message[crossing][1]
                alone = all(other == receiver for other in self._needing(value)[crossing[1]])
                self._receive(crossing, to_output=(alone or self._out_shared) and receiver in value.finals)
        super()._copy_to_results(value)

    def _read_by_peers(self, value: Value) -> bool:
        here = self._needing(value).get(self._host[value.rank], ())
        return value in self._shared_here or any(rank != value.rank for rank in here)

    def _needing(self, value: Value) -> dict[int, list[int]]:
        """List by host the ranks that read a value or whose result it is; a rank for each of them."""
        found: dict[int, list[int]] = {}
        for rank in (*value.finals, *(reader for reader, _ in value.reads)):
            found.setdefault(self._host[rank], []).append(rank)
        return found

    # Messages

    def _send(self, value: Value) -> None:
        """Send a value from where it is stored to one rank of each other host that needs it."""
        rank = value.rank
        needing = self._needing(value)
        others = needing.keys() - self._carried.get(value, set()) - {self._host[rank]}
        receivers = [self._receiver(value, ranks) for host, ranks in needing.items() if host in others]
        if not receivers:
            return
        source = self._sent_from(value)
        targets = [Target(receiver, 0) for receiver in receivers]
        step = LoweredStep(rank, value.chunk, [source], targets, False, value.line, kind=SEND, value=value)
        self._append(step)
        for receiver in receivers:
            self._received[receiver] += 1
            self._message[value, self._host[receiver]] = step, receiver

    def _sent_from(self, value: Value) -> Source:
        source = super()._locate(value, value.rank, value.rank)
        if value in self._avoided.sent:
            source = Source(value.rank, self._cell_of[value], source.initial)
        return source

    def _send_coalesced(self, message: CoalescedMessage) -> None:
        """Copy the contributions to the rank that sends them, which then sends one after the other."""
        sender, target = message.sender, Target(message.receiver, 0)
        sources, copies = [], []
        for value in message.values:
            source = self._sent_from(value)
            if value.rank != sender:
                cell = self._free_cell(sender)
                self._copy(value, sender, super()._locate(value, value.rank, sender), [cell])
                copies.append(self.steps[-1])
                source = Source(sender, cell.place, source.initial)
            sources.append(source)
        for value, source in zip(message.values, sources, strict=True):
            step = LoweredStep(sender, value.chunk, [source], [target], False, value.line, kind=SEND, value=value)
            step.depends.extend(copies)  # so that nothing is executed between the sends
            self._append(step)
            self._received[target.rank] += 1
            self._message[value, message.host] = step, target.rank

    def _receiver(self, value: Value, ranks: list[int]) -> int:
        """Choose of the ranks of a host that need a value the one to which it is sent.

        One whose result it is, so that others' reads are not on the way to it; of these the one with the fewest
        messages so far, then the counterpart of the sender.
        """

        def is_result(rank: int) -> bool:
            return any(rank in each.finals for each in (value, *self._copies.get((value, rank), ())))

        def preference(rank: int) -> tuple[int, int]:
            return self._received[rank], (self._local[rank] - self._local[value.rank]) % len(self._local)

        return min([rank for rank in ranks if is_result(rank)] or ranks, key=preference)

    def _receive(self, crossing: Crossing, to_output: bool) -> Target:
        """Receive a value, the first time that it is needed; the place where it is from then on."""
        value = crossing[0]
        send, rank = self._message[crossing]
        if to_output and crossing not in self._avoided.received:
            target = Target(rank, OUT)
            self._output_at.setdefault(value, []).append(rank)
        else:
            target = self._free_cell(rank)
        source = Source(send.rank, 0)  # the send step, when it has a position
        step = LoweredStep(
            rank, value.chunk, [source], [target], False, value.line, kind=RECV, value=value, message=send
        )
        step.depends.append(send)
        send.receipts.append(step)
        self._append(step)
        self._arrived[crossing] = target
        return target

    def _locate(self, value: Value, name: int, reader: int) -> Source:
        crossing = value, self._host[reader]
        if crossing not in self._message:
            if self._out_shared and self._host[name] != self._host[reader]:
                name = -1  # no rank: its output there cannot be addressed
            return super()._locate(value, name, reader)
        target = self._arrived.get(crossing) or self._receive(crossing, to_output=False)
        return Source(target.rank, target.place, self._reduces and value.raw)

    def _is_received(self, value: Value) -> bool:
        """Return whether an execution only copies what its rank receives: it then needs the message's memory alone."""
        rank = value.rank
        copied = value.sources[0][0]
        crossing = copied, self._host[rank]
        if self._message.get(crossing, (None, -1))[1] != rank or value not in self._copies.get((copied, rank), ()):
            return False
        is_result = rank in value.finals
        target = self._arrived.get(crossing)
        if target is None:
            if self._out_shared:
                free = value not in self._avoided.sent
            else:
                free = len(self._needing(copied)[crossing[1]]) == 1 and not self._read_by_peers(value)
            target = self._receive(crossing, to_output=is_result and free)
        self._output_at[value] = [rank] if is_result else []
        if target.place != OUT:
            self._cell_of[value] = target.place
            if is_result:
                source = Source(rank, target.place, self._reduces and value.raw)
                self._copy(value, rank, source, [Target(rank, OUT)])
        self._copy_to_results(value)
        return True

    def _append(self, step: LoweredStep) -> None:
        super()._append(step)
        if self._pipelined:
            lags = [before.lag + (before is step.message) for before in step.depends]
            step.lag = max(lags, default=0)
