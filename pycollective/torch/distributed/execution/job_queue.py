"""A second queue of calls next to a process group's own: calls of several steps, and calls from futures' callbacks.

A process group's communicator executes calls in program order, the same on all ranks. Two kinds of calls would break
that order if they were made there: those that make a second call when a first has completed (an alltoall of uneven
parts first exchanges the parts' sizes), and those that a future's callback makes whenever it runs. Both become jobs of
this queue, which has its own thread and communicator and executes jobs one by one, in the order in which the program
submitted them. So a chain of callbacks (PowerSGD's) makes its calls in the same order on all ranks.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import torch

from pycollective.comm.communicator import Communicator
from pycollective.comm.host.team import HostTeam
from pycollective.errors import CommunicatorError, Error, NestedCallError, TimeoutError
from pycollective.torch.distributed import health

_T = TypeVar("_T")
_LOOK = 0.05
"""Seconds between two checks of the other ranks."""
Job = Callable[["JobQueue"], Any]
"""The function that a job queue executes. It uses `jobs.comm` only if all ranks' jobs do: creating it is collective."""


def in_callers_mode(function: Callable[..., _T]) -> Callable[..., _T]:
    """The function for another thread: tensors made in the caller's inference mode can be changed only in that mode."""
    return torch.inference_mode()(function) if torch.is_inference_mode_enabled() else function


class Ticket(Future[Any]):
    """A pending job; waits and tests like a communicator's handle."""

    def __init__(self, job: Job, jobs: JobQueue) -> None:
        super().__init__()
        self._job: Job | None = in_callers_mode(job)
        self._jobs = jobs

    def carry_out(self) -> None:
        job, self._job = self._job, None  # releases its tensors
        assert job is not None
        _settle(self, functools.partial(self._jobs.perform, job))

    test = Future.done

    def wait(self, timeout: float | None = None) -> Any:
        """Return what the job returns, or raise what it raises, or TimeoutError after `timeout` seconds.

        Raises:
            NestedCallError: this thread is executing an earlier job, and would wait for itself.
        """
        if not self.done():
            self._jobs.require_outside()
        try:
            error = self.exception(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))
        except concurrent.futures.TimeoutError:
            raise TimeoutError("the call has not completed yet; it can be waited for again") from None
        if error is not None:
            raise error
        return self.result()


def _settle(future: Future[Any], function: Callable[[], Any]) -> None:
    """Call a function, and complete a future with its result or its error."""
    try:
        result = function()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


class JobQueue:
    """Args:
    build: collective, creates the job queue's communicator; called when a job first uses it.
    name: for messages.
    backend: of the process group's communicator; a failure of one of the two communicators ends both.
    """

    def __init__(self, build: Callable[[], Communicator], name: str, backend: HostTeam) -> None:
        self._build, self._name, self._backend = build, name, backend
        self._comm: Communicator | None = None
        self._jobs: collections.deque[Ticket] = collections.deque()
        self._changed = threading.Condition()
        self._busy = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self.started = False  # whether the queue has had a thread, on which jobs may make calls
        self._ident: int | None = None
        self._runner: int | None = None  # the thread that is executing a job

    @property
    def comm(self) -> Communicator:
        """The job queue's communicator; only for the job being executed. Raises the error that has ended the group."""
        self._backend.check()
        if self._comm is None:
            try:
                self._comm = self._built()
            except Error as error:
                health.give_up(self._backend, error)
                self._backend.check()  # raises what all ranks report
                raise
        return self._comm

    def _built(self) -> Communicator:
        """Connect through torch's store, which does not report lost ranks: this thread checks for them meanwhile."""
        health.check(self._backend)
        building: Future[Communicator] = Future()
        arguments = building, self._build
        threading.Thread(target=_settle, args=arguments, name=f"{self._name} connects", daemon=True).start()
        while not wait([building], _LOOK).done:
            health.check(self._backend)
        return building.result()

    def perform(self, job: Job) -> Any:
        """Return `job(self)`. If it raises an error that ends the job queue's communicator, end the group's, too."""
        try:
            return job(self)
        except Error as error:
            if self._comm is not None and self._comm.backend.team.poisoned:
                health.give_up(self._backend, error)
            raise

    def inside(self) -> bool:
        """Return whether the caller is this queue's thread."""
        return threading.get_ident() == self._ident

    def require_outside(self) -> None:
        """Raise NestedCallError if the caller is executing a job of this queue: it cannot wait for a later one."""
        if threading.get_ident() == self._runner:
            raise NestedCallError.on(self._name)

    def submit(self, job: Job) -> Ticket:
        """Execute `job(jobs)` on the job queue's thread, after all jobs before it."""
        ticket = Ticket(job, self)
        with self._changed:
            if self._closed:
                ticket.set_exception(CommunicatorError("the process group was destroyed"))
                return ticket
            if self._thread is None:  # first: a job that is refused must not run later
                thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
                thread.start()
                self._thread, self.started = thread, True
            self._jobs.append(ticket)
            self._changed.notify()
        return ticket

    def run(self, job: Job) -> Any:
        """Return `job(jobs)`, executed after all jobs before it; if there are none, in the calling thread.

        Raises:
            NestedCallError: called by a signal handler or a finalizer while this thread is executing a job here.
        """
        if self.inside():
            return job(self)
        self.require_outside()
        with self._changed:
            idle = not (self._busy or self._jobs or self._closed)
            if idle:
                self._busy, self._runner = True, threading.get_ident()
        if not idle:
            return self.submit(job).wait()
        try:
            return self.perform(job)
        finally:
            self._rest()

    def abort(self, text: str) -> None:
        """End the job in progress, here and on the other ranks."""
        if self._comm is not None:
            self._comm.backend.fail(CommunicatorError(text))

    def close(self, patience: float = 10.0) -> None:
        """Accept no more jobs; submitted jobs have `patience` seconds to complete."""
        with self._changed:
            self._changed.wait_for(lambda: self.inside() or not (self._busy or self._jobs), patience)
            self._closed = True
            left = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        for ticket in left:
            ticket.set_exception(CommunicatorError("the process group was destroyed"))
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
            ticket.carry_out()
            del ticket  # and with it the tensors of the job
            self._rest()
