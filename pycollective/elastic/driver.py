"""The driver of an elastic job: keeps as many workers running as hosts have room for, one generation after the other.

A generation is a set of ranks that work together. It ends when one of them fails or leaves; the others and new workers
then ask the driver for their ranks in the next one (comm/bootstrap/elastic.py), which it forms when all have asked. One
thread does all of this, in `run`; only the discovery has another one. What happens is noticed here; formation.py
decides who works next.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable

from pycollective.comm.bootstrap import elastic_messages as messages
from pycollective.comm.bootstrap.sockets.authentication import TOKEN_BYTES
from pycollective.comm.bootstrap.sockets.this_host import loopback
from pycollective.elastic.discovery import Discovery, Watch
from pycollective.elastic.formation import Formation
from pycollective.elastic.generations import Generations
from pycollective.elastic.host_list import HostList
from pycollective.elastic.limits import Limits
from pycollective.elastic.server import GONE, Event, Server
from pycollective.elastic.task import Task
from pycollective.elastic.workers import KILL_AFTER, Crew, Worker, Workers
from pycollective.errors import CommunicatorError

_TURN = 0.05  # seconds
_COMPLETED = "another worker has ended with code 0 already, so the job does not begin again"


class Driver:
    """Runs one job.

    Args:
        workers: starts the processes. discovery: the hosts.
        limits: of the number of workers, and others.
        address: numeric address of this host at which workers reach the driver; empty: the loopback's.
        token: of the job, TOKEN_BYTES long; None: a new one.
        report: called with sentences about what happens, also from another thread.
        stored: returns a value that changes whenever a commit is stored in a file: when all workers have failed, the
            job begins again from there, unless nothing was stored since the last time. None: it ends.
        task: what workers that ask for it are to call; gets their results.
    """

    def __init__(
        self,
        workers: Workers,
        discovery: Discovery,
        limits: Limits,
        *,
        address: str = "",
        token: bytes | None = None,
        report: Callable[[str], None] = print,
        stored: Callable[[], object] | None = None,
        task: Task | None = None,
    ) -> None:
        self._token = secrets.token_bytes(TOKEN_BYTES) if token is None else token
        address = address or loopback()
        self._discovery, self._limits, self._address, self._report = discovery, limits, address, report
        self._task = task
        self._server = Server(self._token, lambda number: number in self._crew.alive)
        self._crew = Crew(workers, self._server, address, self._token)
        self._hosts, self._generations = HostList(limits.cooldown), Generations(self._server)
        self._formation = Formation(self._crew, self._hosts, self._generations, limits, stored, report, task)
        self._outcome = self._formation.outcome
        self._finishing = False
        self._signals: list[int] = []

    # -- for the caller ------------------------------------------------------------------------------------

    @property
    def failure(self) -> str:
        """Why the job has failed, one sentence."""
        return self._outcome.failure

    def run(self) -> int:
        """Run the job; returns 0 if all workers of the last generation have ended with 0, else the exit code of the
        first one that failed, 1 if none did (see `failure`), or 128 + the signal given to `stop`.

        Raises:
            BootstrapError: `address` cannot be used.
        """
        watch = Watch(self._discovery, self._report)
        try:
            self._server.listen(self._address)
            while self._outcome.code is None:
                self._turn(watch)
        finally:
            watch.end()
            self._crew.end_all(self._signals[0] if self._signals else signal.SIGTERM, lambda: len(self._signals) > 1)
            self._server.close()
        return self._outcome.code

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the job: its workers get this signal, on a second call SIGKILL. From any thread or signal handler."""
        self._signals.append(number)

    def pass_on(self, number: int) -> None:
        """Send a signal to all workers, while the job continues."""
        for worker in [*self._crew.alive.values()]:
            worker.handle.signal(number)

    def members(self) -> list[Worker]:
        """The workers of the last generation, by rank."""
        return self._generations.members

    def listen(self, address: str) -> str:
        """Listen at one more address of this host, for workers that reach no other; returns ADDRESS:PORT.

        To be called by Workers and handles only. Raises BootstrapError if that is not possible.
        """
        return self._server.listen(address)

    # -- what happens --------------------------------------------------------------------------------------

    def _turn(self, watch: Watch) -> None:
        for event in self._server.serve(_TURN):
            if event.worker in self._crew.alive:
                self._hear(self._crew.alive[event.worker], event)
        for worker, code in self._crew.poll():
            self._has_ended(worker, code)
        if self._signals:
            self._outcome.end(128 + self._signals[0], f"the job was ended by signal {self._signals[0]}")
        if watch.failure is not None:
            self._outcome.fail(str(watch.failure))
        if watch.hosts is not None:
            self._hosts.update(watch.hosts)
            if self._outcome.code is None:
                self._act(time.monotonic())

    def _hear(self, worker: Worker, event: Event) -> None:
        if event.kind == GONE:  # it ends, or its host has gone
            worker.kill_at = worker.kill_at or time.monotonic() + KILL_AFTER
        elif event.kind == messages.ROUND:
            self._generations.take(worker, event.payload)
        elif event.kind == messages.ASK:
            try:
                worker.ask = messages.ASKS.decode(event.payload, worker.number)
            except CommunicatorError:
                self._server.drop(worker.number)
                return
            worker.asked, worker.synced = True, worker.synced or worker.ask.synced
            self._has_asked(worker)
        elif self._task is not None and event.kind in (messages.TASK, messages.RESULT):
            for answer in self._task.take(worker.rank, event.kind, event.payload):
                self._server.send(worker.number, *answer)

    def _has_asked(self, worker: Worker) -> None:
        self._formation.asked(worker.synced)
        if worker.leaves:
            self._crew.dismiss(worker)
        elif worker in self._generations.members and not self._finishing:
            self._end_generation(f"{worker} has left this generation")

    def _has_ended(self, worker: Worker, code: int) -> None:
        if worker.leaves:
            return
        if code == 0:
            self._finishing = True
            return
        self._outcome.failed = self._outcome.failed or code
        now = time.monotonic()
        excluded = self._hosts.failed(worker.host, self._generations.number, not worker.asked, now)
        what = f"{worker} ended with code {code}"
        self._report(f"{what}; host {worker.host} gets no new workers" if excluded else what)
        if not self._limits.replace:
            self._outcome.fail(what)
        elif self._finishing:
            self._outcome.fail(f"{what} after others have completed")
        elif worker in self._generations.members:
            self._end_generation(what)
            if not self._formation.members_left() and not self._formation.begin_again():
                self._outcome.fail("all workers have failed")

    def _end_generation(self, reason: str) -> None:
        if not self._generations.ended:
            self._formation.wait_from_now()
            self._generations.end(reason)

    def _act(self, now: float) -> None:
        if self._finishing:
            self._finish()
        else:
            self._formation.proceed(now)

    def _finish(self) -> None:
        """Some have completed: the others may, but nobody begins again."""
        for worker in self._crew.staying():
            if worker not in self._generations.members:
                self._crew.dismiss(worker)
            elif worker.ask is not None:
                worker.ask = None
                self._server.send(worker.number, messages.REFUSED, _COMPLETED.encode())
        if not self._crew.staying():
            self._outcome.end(0)
