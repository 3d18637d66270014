"""The clocks of a simulation: when ranks and ports are free, message by message."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pycollective.schedule.simulator.executions import Executions
from pycollective.schedule.simulator.messages import (
    AWAITED,
    BETWEEN,
    COMBINE,
    CONTINUES,
    FIRST,
    LAST,
    SimulatedMessages,
)
from pycollective.schedule.simulator.network import Network


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step of `rank` on `chunk`, from `begin` to `end` in seconds."""

    rank: int
    chunk: int
    begin: float
    end: float


class Clocks:
    """Times in seconds. Executions are steps; steps and messages are numbered continuously over tiles.

    Attributes:
        free: for each rank, when it has finished its steps so far.
        sending, receiving: when each rank's port becomes free; ports shared by nodes follow those of ranks.
        begin, end: of each step.
        cause: for each message, the last one that it waited for; -1: none.
    """

    def __init__(self, executions: Executions, messages: SimulatedMessages, network: Network) -> None:
        self.executions, self.messages, self.network = executions, messages, network
        each, size = network.ranks_per_node, executions.size
        self._node = [size + rank // each for rank in range(size)] if network.shared_port else []
        self._kind: Any = messages.kind + BETWEEN * (messages.source // each != messages.target // each)
        ports = size + -(-size // each)
        self.free, self._latest = [0.0] * size, [-1] * size  # _latest, ...: the message that determined it
        self.sending, self._sent = [0.0] * ports, [-1] * ports
        self.receiving, self._received = [0.0] * ports, [-1] * ports
        self.begin, self.end, self._ending = array("d"), array("d"), array("q")
        self.cause = array("q")
        self._ready = [0.0] * size  # for the current step of a rank: when its next message's data was ready

    def run(self, lengths: Sequence[int]) -> None:
        """Run all messages once, with chunks of these lengths in bytes."""
        executions, free, ready, latest = self.executions, self.free, self._ready, self._latest
        ranks, chunks, source_at = executions.rank, executions.chunk, executions.source_at
        costs, reduction = (self.network.within_node, self.network.between_nodes), 1 / self.network.reduction
        first, number = len(self.end), len(self.cause)
        for times in (self.begin, self.end, self._ending):
            times.frombytes(bytes(8 * len(ranks)))
        begin = number
        arrived: dict[int, float] = {}
        served: Any = self.messages
        columns = (served.execution, served.source, served.target, self._kind, served.after)
        messages = [memoryview(column) for column in columns]  # whose elements are plain integers
        for execution, source, target, kind, after in zip(*messages, strict=True):
            rank, length = ranks[execution], lengths[chunks[execution]]
            self.cause.append(latest[rank])
            if kind & FIRST:
                self._start(execution, rank, first)
            now = free[rank]
            if after >= 0 and arrived[after] > now:
                now, self.cause[-1] = arrived[after], begin + after
            if source != target and length:
                alpha, beta = costs[kind >= BETWEEN]
                now = self._port_free(source, target, kind, now)
                if kind & CONTINUES:
                    now = max(now, ready[rank] + alpha) + length * beta
                else:
                    now += alpha + length * beta
                self._occupy(source, target, kind, now, number)
            if kind & AWAITED:
                arrived[number - begin] = now
            if kind & COMBINE:
                now += (source_at[execution + 1] - source_at[execution] - 1) * length * reduction
                ready[rank] = now
            free[rank], latest[rank] = now, number
            if kind & LAST:
                self.end[first + execution], self._ending[first + execution] = now, number
            number += 1

    def _start(self, execution: int, rank: int, first: int) -> None:
        """Start a rank's step as soon as the rank and all dependencies of the step have finished."""
        executions, end = self.executions, self.end
        ready, cause = 0.0, -1
        for earlier in executions.before[executions.before_at[execution] : executions.before_at[execution + 1]]:
            if end[first + earlier] > ready:
                ready, cause = end[first + earlier], first + earlier
        self._ready[rank] = ready
        if cause >= 0 and ready >= self.free[rank]:
            self.free[rank], self.cause[-1] = ready, self._ending[cause]
        self.begin[first + execution] = self.free[rank]

    def _port_free(self, source: int, target: int, kind: int, now: float) -> float:
        """The earliest time from now on at which all ports of a message are free."""
        if self.sending[source] > now:
            now, self.cause[-1] = self.sending[source], self._sent[source]
        if self.receiving[target] > now:
            now, self.cause[-1] = self.receiving[target], self._received[target]
        if self._node and kind >= BETWEEN:
            return self._port_free(self._node[source], self._node[target], 0, now)
        return now

    def _occupy(self, source: int, target: int, kind: int, until: float, number: int) -> None:
        self.sending[source] = self.receiving[target] = until
        self._sent[source] = self._received[target] = number
        if self._node and kind >= BETWEEN:
            self._occupy(self._node[source], self._node[target], 0, until, number)

    def step(self, number: int) -> TimedStep:
        """A step with its times."""
        execution = number % len(self.executions)
        rank, chunk = self.executions.rank[execution], self.executions.chunk[execution]
        return TimedStep(rank, chunk, self.begin[number], self.end[number])

    def critical_path(self) -> list[int]:
        """The steps that led to the last, in chronological order."""
        if not self.end:
            return []
        count = len(self.messages.kind)
        path: list[int] = []
        number = self._ending[max(range(len(self.end)), key=self.end.__getitem__)]
        while number >= 0:
            tile, message = divmod(number, count)
            step = tile * len(self.executions) + int(self.messages.execution[message])
            if path[-1:] != [step]:
                path.append(step)
            number = self.cause[number]
        return path[::-1]
