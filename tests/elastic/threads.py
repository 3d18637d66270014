"""Workers of an elastic job that are threads of the test: they talk to the driver, and do nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from pycollective.comm.bootstrap.elastic import DriverConnection
from pycollective.comm.bootstrap.elastic_messages import Ask, Generation
from pycollective.elastic import Driver, FixedHosts, Limits

SECONDS = 20.0


class Worker:
    """A WorkerHandle, and what the body of the worker calls."""

    def __init__(self, body: Callable[[Worker], int | None], host: str, slot: int, env: Mapping[str, str]) -> None:
        self.host, self.slot = host, slot
        self.signals: list[int] = []
        self.updates: list[int] = []
        self.updated = threading.Event()
        self._code: int | None = None
        self._env = env
        self._connection: DriverConnection | None = None
        threading.Thread(target=self._run, args=(body,), daemon=True).start()

    def join(self, synced: bool = False, needs_sync: bool = True) -> Generation:
        """Ask for the next generation."""
        if self._connection is None:
            self._connection = DriverConnection(self._env, SECONDS, gone=lambda: None)
            self._connection.listen(self._hear)
        self.updated.clear()
        self._connection.ask = Ask(synced, needs_sync)
        return self._connection.next_generation()

    def gather(self, data: bytes) -> list[bytes]:
        """An allgather of the generation."""
        return self._connection.gather(data, SECONDS)

    def poll(self) -> int | None:
        return self._code

    def signal(self, number: int) -> None:
        self.signals.append(number)
        if self._connection is not None:
            self._connection.close()
        self._code = 128 + number

    def _hear(self, _time: float, result: int) -> None:
        self.updates.append(result)
        self.updated.set()

    def _run(self, body: Callable[[Worker], int | None]) -> None:
        try:
            code = body(self) or 0
        except SystemExit as end:
            code = int(end.code or 0)
        except Exception:
            code = 99
        if self._connection is not None:
            self._connection.close()
        if self._code is None:
            self._code = code


class Job:
    """A driver of threads, run in this thread, and its Workers; the attributes are what came of it."""

    def __init__(
        self,
        body: Callable[[Worker], int | None],
        hosts: Any,
        limits: Limits,
        stored: Callable[[], object] | None = None,
    ) -> None:
        self._body = body
        self.started: list[Worker] = []
        self.reports: list[str] = []
        discovery = hosts if callable(hosts) else FixedHosts(hosts)
        driver = Driver(self, discovery, limits, report=self.reports.append, stored=stored)
        watchdog = threading.Timer(SECONDS, driver.stop)
        watchdog.start()
        self.code = driver.run()
        watchdog.cancel()
        self.failure, self.members = driver.failure, driver.members()

    def start(self, host: str, slot: int, environment: Mapping[str, str]) -> Worker:
        self.started.append(Worker(self._body, host, slot, environment))
        return self.started[-1]
