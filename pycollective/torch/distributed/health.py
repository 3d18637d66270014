"""Failure of a process group: its calls use two communicators, and a failure of one ends both."""

from __future__ import annotations

from pycollective.comm.communicator import Communicator
from pycollective.errors import BootstrapError, Error, PeerLostError, TimeoutError


class Health:
    """Args: comm: the process group's communicator."""

    def __init__(self, comm: Communicator) -> None:
        self._backend = comm.backend

    def require_sound(self) -> None:
        """Raise the error that has ended the communicator, if any."""
        self._backend.check()

    def check(self) -> None:
        """The same; also raises PeerLostError for a rank whose process has exited."""
        self.require_sound()
        for rank in range(self._backend.group.size):
            if rank != self._backend.group.rank and self._backend.is_gone(rank):
                raise PeerLostError(f"rank {rank} is gone (its process has ended)", rank)

    def give_up(self, error: Error) -> None:
        """End the communicator on all ranks, so that they do not wait for this one, whose call has failed."""
        if isinstance(error, BootstrapError):  # ranks have not joined a second communicator
            error = TimeoutError(str(error))
        self._backend.fail(error)
