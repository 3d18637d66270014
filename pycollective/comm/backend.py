"""The interface of the backends, which execute the calls of a communicator."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pycollective import _core
from pycollective.comm.group import Group
from pycollective.errors import Error

if TYPE_CHECKING:
    from pycollective.comm.explanation import Explanation
    from pycollective.comm.hosts.network import Network
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


class HostBackend(Backend, Protocol):
    """A backend for arrays in host memory, which also allocates windows and creates subgroups."""

    @property
    def group(self) -> Group:
        """The ranks."""
        ...

    @property
    def team(self) -> _core.Team:
        """The core's part of the communicator: for calls without a Python frame, and for its state."""
        ...

    @property
    def outgoing(self) -> dict[int, _core.Team]:
        """The channels for messages to other ranks, for those used so far."""
        ...

    @property
    def incoming(self) -> dict[int, _core.Team]:
        """The channels for messages from other ranks, for those used so far."""
        ...

    def channel(self, peer: int, sends: bool) -> _core.Team:
        """The channel for messages to a rank, or those from it; made if it does not exist."""
        ...

    @property
    def network(self) -> Network | None:
        """What this process connects with ranks of other hosts; None if there are none."""
        ...

    def exchange(self, data: bytes, operation: str = "an exchange of bytes") -> list[bytes]:
        """Collective allgather of bytes of any length, in rank order.

        Args:
            operation: its purpose, with anything else that the ranks must agree on.

        Raises:
            MismatchError: the ranks called different operations.
        """
        ...

    def limited(self, seconds: float | None) -> AbstractContextManager[None]:
        """Let the exchanges of this thread, and what consists of them, take at most so many seconds together.

        Args:
            seconds: None: each as long as a call.
        """
        ...

    def share(self, nbytes: int) -> _core.Segment | None:
        """Collective: a zero-filled segment of shared memory; None if the ranks share none.

        Raises:
            CommunicatorError: no kind of shared memory works; gives the reason for each.
        """
        ...

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Collective: an array that all ranks of the same host can address."""
        ...

    def window_number(self, shape: tuple[int, ...], dtype: str) -> int:
        """Collective: the number of a new window, after checking that shape and dtype agree.

        Raises:
            MismatchError: shapes or dtypes differ between ranks.
        """
        ...

    def split(self, members: Sequence[int], name: str) -> HostBackend | None:
        """Collective over all ranks: a backend for this rank's part; None for a rank without one.

        Args:
            members: the ranks of the part, in its order; empty for a rank without one.
            name: of the new communicator, for error messages.
        """
        ...

    def shrink(self, timeout: float) -> HostBackend:
        """A backend for the ranks that are still alive; see Communicator.shrink."""
        ...

    def explain(self, collective: str, nbytes: int, topology: Any) -> Explanation:
        """How a call would be executed."""
        ...

    def lost_peer(self) -> int | None:
        """A rank whose process has ended without closing the communicator, as far as this rank can tell."""
        ...

    def fail(self, error: Error, culprit: int = -1) -> None:
        """End the communicator on every rank that can be reached: they raise `error`, at the latest in their next call.

        A lost peer, a mismatch and a missed deadline leave calls in flight that have all they need to complete; other
        errors end them too.

        Args:
            culprit: the rank that caused the error; -1: none.
        """
        ...

    def fail_all(self, error: Error) -> None:
        """Fail the communicator's calls and the messages between its ranks."""
        ...
