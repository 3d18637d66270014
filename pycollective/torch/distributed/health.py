"""Failure of a process group: its calls use two communicators, and a failure of one ends both."""

from __future__ import annotations

import time

from pycollective.comm.host.team import HostTeam
from pycollective.errors import BootstrapError, Error, PeerLostError, TimeoutError

_CLOSING = 1.0
"""Seconds in which all connections of a process that has ended are closed."""
_LOOK = 0.01


def check(backend: HostTeam) -> None:
    """Raise the error that has ended a communicator, or PeerLostError for a rank whose process has exited."""
    backend.check()
    for rank in range(backend.group.size):
        if rank != backend.group.rank and backend.team.gone(rank):
            raise PeerLostError(f"rank {rank} is gone (its process has ended)", rank)


def give_up(backend: HostTeam, error: Error) -> None:
    """End a communicator on all ranks, so that they do not wait for this one, whose call has failed."""
    if isinstance(error, BootstrapError):  # ranks have not joined a second communicator
        error = _lost(backend, within=_CLOSING) or TimeoutError(str(error))
    backend.fail(error)


def _lost(backend: HostTeam, within: float) -> PeerLostError | None:
    """The loss of a rank, if one is detected within so many seconds."""
    end = time.monotonic() + within
    while True:
        try:
            check(backend)
        except PeerLostError as lost:
            return lost
        except Error:  # the communicator has ended already
            return None
        if time.monotonic() > end:
            return None
        time.sleep(_LOOK)
