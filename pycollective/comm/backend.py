"""What carries out the calls of a communicator: the interface that all backends have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pycollective import _core
from pycollective.comm.group import Group
from pycollective.errors import Error

if TYPE_CHECKING:
    from pycollective.comm.explain import Explanation
    from pycollective.comm.request import CallRequest


class Work(Protocol):
    """A nonblocking call under way."""

    def wait(self, timeout: float | None = None) -> None:
        """Block until the call has completed; raises what it raised, or TimeoutError after `timeout` seconds."""
        ...

    def test(self) -> bool:
        """Whether it has completed, well or not. Does not block."""
        ...


class Backend(Protocol):
    """Carries out requests. Every rank makes the same ones, in the same order."""

    def run(self, request: CallRequest) -> None:
        """Carry a request out. On return the result is in `request.out`, or on a GPU: the work is in its stream."""
        ...

    def start(self, request: CallRequest) -> Work:
        """Begin to carry a request out. Its arrays must be left alone until the work has completed."""
        ...

    def check(self) -> None:
        """Raise what has ended the communicator, if anything has. Does not wait."""
        ...

    def close(self) -> None:
        """The rank makes no further calls; may be called twice."""
        ...


class HostBackend(Backend, Protocol):
    """A backend for arrays in host memory, which also makes windows and forms further groups."""

    @property
    def group(self) -> Group:
        """The ranks."""
        ...

    @property
    def team(self) -> _core.Team | None:
        """The core's end of the communicator, for calls without a Python frame; None between hosts."""
        ...

    @property
    def outgoing(self) -> dict[int, _core.Team] | None:
        """The channels over which messages to other ranks go, as far as there were any; None between hosts."""
        ...

    @property
    def incoming(self) -> dict[int, _core.Team] | None:
        """The same of messages from other ranks."""
        ...

    @property
    def poisoned(self) -> bool:
        """Whether a fault has ended the communicator."""
        ...

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        ...

    def require_turn(self) -> None:
        """Raise NestedCallError if the caller is inside a call of the communicator already."""
        ...

    def exchange(self, data: bytes, operation: str = "an exchange of bytes") -> list[bytes]:
        """Collective allgather of bytes of any length, in rank order.

        Args:
            operation: what needs it, with whatever else the ranks must agree on.

        Raises:
            MismatchError: the ranks are in different operations.
        """
        ...

    def share(self, nbytes: int) -> _core.Segment | None:
        """Collective: a segment of shared memory that begins as zeros; None where the ranks share none.

        Raises:
            CommunicatorError: no kind of shared memory works; says why for each.
        """
        ...

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Collective: an array that all ranks can reach, where they share memory."""
        ...

    def window_number(self, shape: tuple[int, ...], dtype: str) -> int:
        """Collective: the number of a new window, once all ranks make one of the same shape and dtype.

        Raises:
            MismatchError: shapes or dtypes differ between ranks.
        """
        ...

    def split(self, members: Sequence[int], color: int | None, key: int, name: str) -> HostBackend | None:
        """Collective over all ranks: a backend for this rank's part of them; None for a rank without a part.

        Args:
            members: the ranks of the part, in its order; empty for a rank without one.
            color, key: what has led to this part; the same color for all of its ranks.
            name: of the new communicator, for messages.
        """
        ...

    def shrink(self, timeout: float) -> HostBackend:
        """A backend for the ranks that are still alive; see Communicator.shrink."""
        ...

    def explain(self, collective: str, nbytes: int, topology: Any) -> Explanation:
        """How a call would be carried out."""
        ...

    def lost_peer(self) -> int | None:
        """A rank whose process has ended without closing the communicator, as far as can be seen from here."""
        ...

    def is_gone(self, rank: int) -> bool:
        """Whether a rank's process has ended, as far as can be seen from here."""
        ...

    def has_departed(self, rank: int) -> bool:
        """Whether a rank has closed its end, as far as can be seen from here."""
        ...

    def fail(self, error: Error, culprit: int = -1) -> None:
        """End the communicator on every rank that can be reached: they raise this error.

        Args:
            culprit: the rank that the error is about; -1: none.
        """
        ...

    def fail_all(self, error: Error) -> None:
        """The same, for messages between its ranks too."""
        ...

    def watch_calls(self, look: Callable[[], None]) -> None:
        """Between hosts: call `look` now and then while a call waits; what it raises ends the communicator."""
        ...

    def duplicate_mpi(self) -> Any | None:
        """Collective: an mpi4py communicator of the same ranks, for messages that are no collectives.

        None where the ranks share memory: they need no MPI. Who asks for it owns it.
        """
        ...
