"""Failure of a process group: its calls use two communicators, and a failure of one ends both."""

from __future__ import annotations

import time

from pycollective.comm.communicator import Communicator
from pycollective.errors import BootstrapError, Error, PeerLostError, TimeoutError

_CLOSING = 1.0
"""Seconds in which all connections of a process that has ended are closed."""
_LOOK = 0.01


class Health:
    """Args: comm: the process group's communicator."""

    def __init__(self, comm: Communicator) -> None:
        self._backend = comm.backend

    def require_sound(self) -> None:
        """Raise the error that has ended the communicator, if any."""
        self._backend.check()

    def check(self) -> None:
        """Raise like `require_sound`, and also PeerLostError for a rank whose process has exited."""
        self.require_sound()
        for rank in range(self._backend.group.size):
            if rank != self._backend.group.rank and self._backend.team.gone(rank):
                raise PeerLostError(f"rank {rank} is gone (its process has ended)", rank)

    def give_up(self, error: Error) -> None:
        """End the communicator on all ranks, so that they do not wait for this one, whose call has failed."""
        if isinstance(error, BootstrapError):  # ranks have not joined a second communicator
            error = self._lost(within=_CLOSING) or TimeoutError(str(error))
        self._backend.fail(error)

    def _lost(self, within: float) -> PeerLostError | None:
        """The loss of a rank, if one is detected within so many seconds."""
        end = time.monotonic() + within
        while True:
            try:
                self.check()
            except PeerLostError as lost:
                return lost
            except Error:  # the communicator has ended already
                return None
            if time.monotonic() > end:
                return None
            time.sleep(_LOOK)
