"""The handle of a nonblocking call."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, TypeVar

from pycollective.comm.backend import CallInProgress

_Result = TypeVar("_Result")
_LONGEST_PAUSE = 2e-3  # seconds between an awaiting task's looks


class Handle(Generic[_Result]):
    """A nonblocking call. Its arrays must not be touched until it has completed."""

    __slots__ = ("_value", "_work")  # set by csrc/bindings/calls/methods.cpp, too

    def __init__(self, work: CallInProgress, value: _Result) -> None:
        self._work = work
        self._value = value

    def wait(self, timeout: float | None = None) -> None:
        """Block until the call has completed.

        Args:
            timeout: seconds; None waits until the call's deadline.

        Raises:
            pycollective.TimeoutError: not completed yet; `wait` may be called again.
            Exception: the error of the call.
        """
        self._work.wait(timeout)

    def __await__(self) -> Generator[Any, None, _Result]:
        """Wait as `result` does, in a coroutine of asyncio whose other tasks run meanwhile.

        Returns:
            the result of the blocking form of the call.

        Raises:
            Exception: the error of the call.
        """
        return self._completed().__await__()

    async def _completed(self) -> _Result:
        import asyncio  # slow to load

        pause = 0.0
        while not self.test():
            await asyncio.sleep(pause)
            pause = min(2 * pause + 1e-5, _LONGEST_PAUSE)
        return self.result()

    def test(self) -> bool:
        """Return whether the call has completed or failed. Does not block.

        Returns:
            True if `wait` would return or raise immediately.
        """
        return self._work.test()

    def result(self, timeout: float | None = None) -> _Result:
        """wait(), then return the result of the blocking form.

        Args:
            timeout: as for `wait`.

        Returns:
            the result of the blocking form of the call.

        Raises:
            Exception: as `wait`.
        """
        self._work.wait(timeout)
        return self._value
