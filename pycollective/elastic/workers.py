"""The worker processes of an elastic job: started, polled, dismissed and ended; and what the driver knows of each."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pycollective.comm.bootstrap import elastic_messages as messages
from pycollective.comm.bootstrap.elastic import WORKER
from pycollective.comm.bootstrap.launchers import ELASTIC_DRIVER
from pycollective.elastic.server import Server

KILL_AFTER = 5.0
"""Seconds between asking a worker to end and killing it."""
_POLL = 0.02


class WorkerHandle(Protocol):
    """A started worker."""

    def poll(self) -> int | None:
        """Its exit code, 128 + the signal for one that was ended by one; None: it runs, or starts. Does not block."""
        ...

    def signal(self, number: int) -> None:
        """Send it a signal; no error if it has ended. After SIGKILL, `poll` soon returns a code."""
        ...


class Workers(Protocol):
    """Starts processes."""

    def start(self, host: str, slot: int, environment: Mapping[str, str]) -> WorkerHandle:
        """Start a worker on a host; does not block.

        Args:
            slot: its number among those of the host, from 0 on.
            environment: variables that it needs before init().

        Raises:
            OSError, BootstrapError: it cannot be started there.
        """
        ...


@dataclass(eq=False)
class Worker:
    """A process that has not ended.

    Attributes:
        number: by which it is known to the driver; never used again.
        ask: what it waits for; None: it runs.
        rank: in its last generation; -1: it was in none.
        synced: whether it has the state.
        leaves: whether it is not needed any more.
        kill_at: when it gets SIGKILL.
    """

    number: int
    host: str
    slot: int
    handle: WorkerHandle
    started: float = field(default_factory=time.monotonic)
    ask: messages.Ask | None = None
    asked: bool = False
    rank: int = -1
    synced: bool = False
    leaves: bool = False
    kill_at: float | None = None

    def __str__(self) -> str:
        rank = f"rank {self.rank}, " if self.rank >= 0 else ""
        return f"worker {self.number} ({rank}host {self.host})"


class Crew:
    """The workers that have not ended, which reach the server at `address`."""

    def __init__(self, workers: Workers, server: Server, address: str, token: bytes) -> None:
        self._workers, self._server, self._address, self._token = workers, server, address, token
        self._numbers = itertools.count()
        self.alive: dict[int, Worker] = {}

    def staying(self) -> list[Worker]:
        """Those that were not dismissed."""
        return [worker for worker in self.alive.values() if not worker.leaves]

    def start(self, host: str) -> None:
        """Start a worker in the lowest free slot of a host. Raises the errors of Workers.start."""
        taken = {worker.slot for worker in self.alive.values() if worker.host == host}
        slot = next(slot for slot in itertools.count() if slot not in taken)
        number = next(self._numbers)
        handle = self._workers.start(host, slot, self._environment(number, host, slot))
        self.alive[number] = Worker(number, host, slot, handle)

    def poll(self) -> list[tuple[Worker, int]]:
        """Those that have ended since the last call, with their exit codes. Kills those whose time is over."""
        now, ended = time.monotonic(), []
        for worker in [*self.alive.values()]:
            code = worker.handle.poll()
            if code is not None:
                del self.alive[worker.number]
                ended.append((worker, code))
            elif worker.kill_at is not None and now >= worker.kill_at:
                worker.kill_at = now + KILL_AFTER
                worker.handle.signal(signal.SIGKILL)
        for worker, _ in ended:
            self._server.drop(worker.number)
        return ended

    def dismiss(self, worker: Worker, seconds: float = KILL_AFTER) -> None:
        """It is not needed any more: it ends when it asks for a rank, or is killed after so many seconds."""
        worker.leaves = True
        worker.kill_at = worker.kill_at or time.monotonic() + seconds
        if worker.ask is not None:
            self._server.send(worker.number, messages.LEAVE)
        elif not worker.asked:
            worker.handle.signal(signal.SIGTERM)

    def end_all(self, number: int, hurry: Callable[[], bool]) -> None:
        """Send a signal to all, wait until they have ended, and kill them KILL_AFTER seconds later or on `hurry`."""
        for sent, enough in ((number, hurry), (signal.SIGKILL, lambda: False)):
            for worker in self.alive.values():
                worker.handle.signal(sent)
            deadline = time.monotonic() + KILL_AFTER
            while self.alive and time.monotonic() < deadline and not enough():
                self.poll()
                time.sleep(_POLL)

    def _environment(self, number: int, host: str, slot: int) -> dict[str, str]:
        return {
            ELASTIC_DRIVER: self._server.listen(self._address),
            WORKER: str(number),
            "PYCOLLECTIVE_TOKEN": self._token.hex(),
            "HOROVOD_ELASTIC": "1",
            "HOROVOD_HOSTNAME": host,
            "HOROVOD_LOCAL_RANK": str(slot),
            "LOCAL_RANK": str(slot),
        }
