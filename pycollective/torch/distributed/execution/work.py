"""The results of asynchronous calls: torch's Work, and its Future."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from pycollective.errors import TimeoutError
from pycollective.torch.distributed.execution.job_queue import JobQueue, in_callers_mode


class PendingCall(Protocol):
    """A call in progress: a communicator's handle, a job queue's ticket, a message."""

    def wait(self, timeout: float | None = None, /) -> Any: ...

    def test(self) -> bool: ...


class Several:
    """Several calls as one: Works, or operations of the engine."""

    def __init__(self, calls: Sequence[PendingCall]) -> None:
        self._calls = calls

    def wait(self, timeout: float | None = None) -> None:
        end = 0.0 if timeout is None else time.monotonic() + timeout
        for call in self._calls:  # the last ones may be waited for for a microsecond at least
            call.wait(None if timeout is None else max(1e-6, end - time.monotonic()))

    def test(self) -> bool:
        return all(call.test() for call in self._calls)


class _Failure:
    """The value of a future whose call has failed: not even torch's C++ can mistake it for tensors.

    A future written in Python cannot complete with an error that C++ sees. What reads tensors from its value
    (DistributedDataParallel's reducer) pickles it to find them, and what converts it to one reports its text.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __str__(self) -> str:
        return f"{type(self.error).__name__}: {self.error}"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise self.error


def _reveal(failure: _Failure) -> None:
    raise failure.error


class Future(torch.futures.Future):
    """A future whose callbacks run on the process group's job queue, in program order.

    torch runs a callback immediately if the future is already complete, else on the thread that completes it: which of
    the two differs between ranks, and with it the order of the callbacks' calls.

    Args:
        jobs: the queue; None: callbacks need no order.
    """

    def __init__(self, jobs: JobQueue | None) -> None:
        super().__init__()
        self._jobs = jobs

    def set_exception(self, result: Any) -> None:
        """Complete with an error, which readers in Python and in C++ raise."""
        self._set_unwrap_func(_reveal)
        self.set_result(_Failure(result))

    def then(self, callback: Callable[[Any], Any]) -> Any:
        """A future of what `callback(self)` returns."""
        if self._jobs is None:
            return super().then(callback)
        following = Future(self._jobs)

        def job(_: object = None) -> None:
            if not self.done():
                with contextlib.suppress(Exception):  # the callback handles a failed future
                    self.wait()
            try:
                following.set_result(callback(self))
            except Exception as error:
                following.set_exception(error)

        if self._jobs.inside():
            job()
        else:
            self._jobs.submit(job)
        return following


class CollectiveWork(dist.Work):
    """What the Works of this package have in common: `wait`, `is_completed` and `exception` are their own.

    Attributes:
        outputs: the tensors that the call fills.
    """

    outputs: list[Any]
    copies = False
    """Whether it copies its outputs when it completes."""
    waited_for = False
    """Whether `wait` has returned, so that nothing has to be asked to know that the call has completed."""

    def synchronize(self) -> None:
        """wait()."""
        self.wait()

    def is_success(self) -> bool:
        """Return whether the call has completed without an error."""
        return self.is_completed() and self.exception() is None

    def result(self) -> list[Any]:
        """The tensors that the call fills, after wait()."""
        self.wait()
        return self.outputs


class Work(CollectiveWork):
    """A call in progress.

    Args:
        call: the call itself.
        outputs: the tensors that it fills.
        finish: what is left to do once it has completed (copying to tensors that are not contiguous).
        jobs: of the process group; None for messages, which may complete in any order.
    """

    call: PendingCall
    _finish: Callable[[], None] | None = None
    _completed = False
    _future: Any = None
    _error: BaseException | None = None

    def __init__(
        self,
        call: PendingCall,
        outputs: Sequence[Any],
        finish: Callable[[], None] | None = None,
        jobs: JobQueue | None = None,
    ) -> None:
        dist.Work.__init__(self)
        self.call = call
        self.outputs, self.jobs = list(outputs), jobs
        if finish is not None:
            self._finish, self.copies = in_callers_mode(finish), True
            self._turn = threading.RLock()  # a signal handler may run while this thread holds it

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """Block until the call has completed and its tensors are filled.

        Args:
            timeout: the longest time to wait, also in seconds; None or zero: until the call's own deadline.

        Raises:
            pycollective.TimeoutError: not completed in time. Any error that the call raised.
        """
        if not self._completed:
            self._settle((timeout.total_seconds() if isinstance(timeout, timedelta) else timeout) or None)
        if self._error is not None:
            raise self._error
        self.waited_for = True
        return True

    def is_completed(self) -> bool:
        """Return whether the call has completed, successfully or not. Does not block."""
        if not self._completed and self.call.test():
            self._settle(None)
        return self._completed

    test = is_completed

    def exception(self) -> BaseException | None:
        """The error that the call raised, if it has completed and failed."""
        return self._error if self.is_completed() else None

    def source_rank(self) -> int:
        """The sender's rank in the group, once the message that this receives has arrived.

        Raises:
            RuntimeError: it receives no message.
        """
        self.wait()
        sender = getattr(getattr(self, "call", None), "sender", None)
        return super()._source_rank() if sender is None else int(sender)

    _source_rank = source_rank

    def get_future(self) -> Any:
        """A torch.futures.Future of `result()`."""
        if self._future is None:
            self._future = self._promise()
        return self._future

    def _promise(self) -> Any:
        jobs, future = self.jobs, Future(self.jobs)
        if jobs is None:
            threading.Thread(target=self._fulfil, args=(future,), daemon=True).start()
        elif jobs.inside() or self.is_completed():
            self._fulfil(future)
        else:
            jobs.submit(lambda _: self._fulfil(future))
        return future

    def _fulfil(self, future: Any) -> None:
        try:
            self.wait()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(self.outputs)

    def _settle(self, timeout: float | None) -> None:
        """Wait for the call and finish it once; concurrent callers wait for that."""
        try:
            self.call.wait(timeout)
        except Exception as error:
            self._end(error)
        else:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        """Record how waiting for the call has ended; raises a TimeoutError after which it can be waited for again."""
        if isinstance(error, TimeoutError) and not self.call.test():
            raise error
        if not self.copies:
            self._error, self._completed = error, True
            return
        with self._turn:
            if self._completed:
                return
            if error is None and self._finish is not None:
                try:
                    self._finish()
                except Exception as failure:
                    error = failure
            self._error, self._finish, self._completed = error, None, True


class PlainWork(Work):
    """A call of the core or a message in progress, which copies nothing when it completes.

    Its methods are those of Work, with fewer frames; `call`, `outputs` and `jobs` are set by the caller.
    """

    __init__ = dist.Work.__init__

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        if timeout is not None:
            return Work.wait(self, timeout)
        if not self.waited_for:
            try:
                self.call.wait()
            except Exception as error:
                self._end(error)
                raise
            self._completed = self.waited_for = True
        return True

    @classmethod
    def completed(cls, outputs: Sequence[Any], jobs: JobQueue) -> PlainWork:
        """Make the Work of a call that had completed when it returned."""
        work: PlainWork = cls()
        work.outputs, work.jobs = list(outputs), jobs
        work._completed = work.waited_for = True
        return work


_kept: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def keep_works() -> None:
    """Make a reducer keep the complete Work that it waits for in backward, until it gets the next.

    When C++ calls a process group, it keeps the Python half of the returned Work. When Python passes one to C++, only
    the C++ half is kept: once Python has released the Work, it has the methods of its base class, and `wait` never
    returns. There is one such place, DistributedDataParallel.join(divide_by_initial_world_size=False).
    """
    reducer: Any = dist.Reducer
    hand_over = reducer._set_forward_pass_work_handle

    def keep(self: Any, work: Any, *more: Any) -> None:
        _kept[self] = work
        hand_over(self, work, *more)

    reducer._set_forward_pass_work_handle = keep
