"""A second line of calls beside a process group's own: what takes several steps, and what futures' callbacks call.

A process group's communicator runs calls in the order of the caller's program, the same on all ranks. Two kinds of
calls would break that order if they were made there: those that need a second call when a first has completed (an
alltoall of uneven parts asks for the parts' sizes first), and those that a future's callback makes whenever it is run.
Both become jobs of this line, which has a thread and a communicator of its own and carries jobs out one by one, in
the order of the program that submitted them. So a chain of callbacks (PowerSGD's) calls in the same order on all ranks.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from pycollective.comm.communicator import Communicator
from pycollective.errors import CommunicatorError, Error, NestedCallError, TimeoutError
from pycollective.torch.distributed.health import Health

_LOOK = 0.05
"""Seconds between two looks after the other ranks."""
Job = Callable[["JobQueue"], Any]
"""What a job queue carries out. It asks for `jobs.comm` only if all ranks' jobs do: making that is collective."""


class Ticket:
    """A job under way; waits and tests as a communicator's handle does."""

    def __init__(self, job: Job, jobs: JobQueue) -> None:
        self._job, self._jobs = job, jobs
        self._completed = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    def carry_out(self, jobs: JobQueue) -> None:
        try:
            self.result = jobs.perform(self._job)
        except BaseException as error:
            self.error = error
        self._job = _nothing  # lets go of its tensors
        self._completed.set()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._completed.set()

    def test(self) -> bool:
        """Whether the job has completed or failed."""
        return self._completed.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Block until the job has completed; raises what it raised, or TimeoutError after `timeout` seconds.

        Raises:
            NestedCallError: this thread carries out a job before it, and would wait for itself.
        """
        if not self._completed.is_set():
            self._jobs.require_outside()
        if not self._completed.wait(timeout):
            raise TimeoutError("the call has not completed yet; it can be waited for again")
        if self.error is not None:
            raise self.error


def _nothing(jobs: JobQueue) -> None:
    pass


class JobQueue:
    """Args:
    build: collective, makes the job queue's communicator; called when a job first asks for it.
    name: for messages.
    health: of the process group.
    """

    def __init__(self, build: Callable[[], Communicator], name: str, health: Health) -> None:
        self._build, self._name, self._health = build, name, health
        self._comm: Communicator | None = None
        self._jobs: collections.deque[Ticket] = collections.deque()
        self._changed = threading.Condition()
        self._busy = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._ident: int | None = None
        self._runner: int | None = None  # the thread that carries out a job now

    @property
    def comm(self) -> Communicator:
        """The job queue's communicator; only for the job that is being carried out. Raises what has ended the group."""
        self._health.require_sound()
        if self._comm is None:
            try:
                self._comm = self._built()
            except Error as error:
                self._health.give_up(error)
                raise
        return self._comm

    def _built(self) -> Communicator:
        """Ranks meet through torch's store, which does not tell who is gone: this thread looks after them meanwhile."""
        self._health.check()
        building: Future[Communicator] = Future()

        def build() -> None:
            try:
                building.set_result(self._build())
            except BaseException as error:
                building.set_exception(error)

        threading.Thread(target=build, name=f"{self._name} meets", daemon=True).start()
        while not wait([building], _LOOK).done:
            self._health.check()
        return building.result()

    def perform(self, job: Job) -> Any:
        """What `job(self)` returns. If it raises what ends the job queue's communicator, that ends the group's, too."""
        try:
            return job(self)
        except Error as error:
            if self._comm is not None and self._comm.backend.poisoned:
                self._health.give_up(error)
            raise

    def inside(self) -> bool:
        """Whether the caller is a job of this queue."""
        return threading.get_ident() == self._ident

    def require_outside(self) -> None:
        """Raise NestedCallError if the caller carries out a job of this queue: it cannot wait for a later one."""
        if threading.get_ident() == self._runner:
            raise NestedCallError.on(self._name)

    def submit(self, job: Job) -> Ticket:
        """Carry out `job(jobs)` on the job queue's thread, after all jobs before it."""
        ticket = Ticket(job, self)
        with self._changed:
            if self._closed:
                ticket.fail(CommunicatorError("the process group was destroyed"))
                return ticket
            self._jobs.append(ticket)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()
        return ticket

    def run(self, job: Job) -> Any:
        """What `job(jobs)` returns, after all jobs before it: here, without a change of thread, if there is none.

        Raises:
            NestedCallError: called by a signal handler or a finalizer, while this thread carries out a job here.
        """
        if self.inside():
            return job(self)
        self.require_outside()
        with self._changed:
            idle = not (self._busy or self._jobs or self._closed)
            if idle:
                self._busy, self._runner = True, threading.get_ident()
        if not idle:
            ticket = self.submit(job)
            ticket.wait()
            return ticket.result
        try:
            return self.perform(job)
        finally:
            self._rest()

    def abort(self, text: str) -> None:
        """End the job under way, here and on the other ranks."""
        if self._comm is not None:
            self._comm.backend.fail(CommunicatorError(text))

    def close(self, patience: float = 10.0) -> None:
        """No more jobs; those that were submitted have `patience` seconds to end."""
        with self._changed:
            self._changed.wait_for(lambda: self.inside() or not (self._busy or self._jobs), patience)
            self._closed = True
            left = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        for ticket in left:
            ticket.fail(CommunicatorError("the process group was destroyed"))
        if self._thread is not None and not self.inside():
            self._thread.join(1.0)
        if self._comm is not None:
            self._comm.free()

    def _rest(self) -> None:
        with self._changed:
            self._busy, self._runner = False, None
            self._changed.notify_all()

    def _loop(self) -> None:
        self._ident = threading.get_ident()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or (self._jobs and not self._busy))
                if self._closed:
                    return
                ticket = self._jobs.popleft()
                self._busy, self._runner = True, self._ident
            ticket.carry_out(self)
            self._rest()
