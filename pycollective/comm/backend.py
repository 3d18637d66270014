"""The interface of the backends, which execute the calls of a communicator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pycollective.comm.request import CallRequest


class CallInProgress(Protocol):
    """A nonblocking call in progress."""

    def wait(self, timeout: float | None = None) -> None:
        """Block until the call has completed; raises its error, or TimeoutError after `timeout` seconds."""
        ...

    def test(self) -> bool:
        """Return whether it has completed or failed. Does not block."""
        ...


class Backend(Protocol):
    """Executes requests. Every rank makes the same ones, in the same order."""

    def run(self, request: CallRequest) -> None:
        """Execute a request. On return the result is in `request.out`; on a GPU, the work is in its stream."""
        ...

    def start(self, request: CallRequest) -> CallInProgress:
        """Start a request. Its arrays must not be touched until the work has completed."""
        ...

    def check(self) -> None:
        """Raise the error that has ended the communicator, if any. Does not wait."""
        ...

    def close(self) -> None:
        """The rank makes no further calls; may be called twice."""
        ...
