"""The handle of a nonblocking call."""

from __future__ import annotations

from typing import Generic, TypeVar

from pycollective.comm.backend import Work

_Result = TypeVar("_Result")


class Handle(Generic[_Result]):
    """A nonblocking call. The arrays of the call must be left alone until it has completed."""

    __slots__ = ("_value", "_work")

    def __init__(self, work: Work, value: _Result) -> None:
        self._work = work
        self._value = value

    def wait(self, timeout: float | None = None) -> None:
        """Block until the call has completed.

        Args:
            timeout: seconds; None waits for the call's own deadline.

        Raises:
            pycollective.TimeoutError: not completed yet; the handle can be waited for again.
            Exception: what the call raised.
        """
        self._work.wait(timeout)

    def test(self) -> bool:
        """Whether the call has completed, well or not. Does not block.

        Returns:
            True once `wait` would return or raise at once.
        """
        return self._work.test()

    def result(self, timeout: float | None = None) -> _Result:
        """wait(), then what the blocking form returns.

        Args:
            timeout: as for `wait`.

        Returns:
            what the blocking form of the call returns.

        Raises:
            Exception: as `wait`.
        """
        self._work.wait(timeout)
        return self._value
