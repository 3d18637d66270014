"""The generations of an elastic job, and what their workers are told."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from pycollective.comm.bootstrap import elastic_messages as messages
from pycollective.comm.bootstrap.sockets.frames import pack
from pycollective.elastic.server import Server
from pycollective.elastic.workers import Worker

REMOVED, ADDED = 1, 2
"""Changes of the hosts; bits."""


class Generations:
    """One after the other.

    Attributes:
        number: of the last one; 0: there was none.
        members: its workers, by rank.
        ended: whether it has ended.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.number, self.ended = 0, True
        self.members: list[Worker] = []
        self._notified, self._notified_at = 0, 0.0
        self._data: dict[int, bytes] = {}

    def form(self, ranks: Sequence[Worker]) -> str:
        """Begin the next one, of workers that have asked for it; returns a sentence about it."""
        self.number += 1
        self.members, self.ended, self._notified, self._data = list(ranks), False, 0, {}
        sync = any(not worker.synced or (worker.ask is not None and worker.ask.needs_sync) for worker in ranks)
        sizes, before = Counter(worker.host for worker in ranks), Counter[str]()
        for rank, worker in enumerate(ranks):
            local = before[worker.host], sizes[worker.host]
            before[worker.host] += 1
            worker.ask, worker.rank = None, rank
            told = messages.Generation(self.number, rank, len(ranks), *local, sync)
            self._server.send(worker.number, messages.FORMED, messages.GENERATIONS.encode(told))
        listed = ", ".join(f"{host}:{count}" for host, count in sizes.items())
        return f"generation {self.number}: {len(ranks)} workers on {listed}"

    def take(self, worker: Worker, data: bytes) -> None:
        """A worker's data for an allgather, which ends when all have come; ignored if the generation has ended."""
        if self.ended or worker not in self.members:
            return
        self._data[worker.number] = data
        if len(self._data) == len(self.members):
            everything = pack([self._data[member.number] for member in self.members])
            self._data = {}
            self._tell(messages.GATHERED, everything)

    def notify(self, change: int) -> None:
        """Tell the members, once in a generation, that hosts were removed or added."""
        if change & ~self._notified:
            self._notified |= change
            self._notified_at = max(time.time(), self._notified_at + 1e-3)
            update = messages.Update(self._notified_at, self._notified)
            self._tell(messages.UPDATED, messages.UPDATES.encode(update))

    def end(self, reason: str) -> None:
        """It has ended: workers that wait in an allgather get the reason."""
        self.ended = True
        self._tell(messages.BROKEN, reason.encode())

    def _tell(self, kind: int, payload: bytes) -> None:
        for member in self.members:
            self._server.send(member.number, kind, payload)
