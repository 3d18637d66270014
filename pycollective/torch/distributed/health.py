"""What ends a process group: its calls are made on two communicators, and what ends one of them ends the other."""

from __future__ import annotations

from pycollective.comm.communicator import Communicator
from pycollective.errors import BootstrapError, Error, PeerLostError, TimeoutError


class Health:
    """Args: comm: the process group's communicator. Between hosts MPI looks after the ranks."""

    def __init__(self, comm: Communicator) -> None:
        self._backend = comm.backend

    def require_sound(self) -> None:
        """Raise what has ended the communicator."""
        self._backend.check()

    def check(self) -> None:
        """The same, and PeerLostError for a rank whose process has ended."""
        self.require_sound()
        for rank in range(self._backend.group.size):
            if rank != self._backend.group.rank and self._backend.is_gone(rank):
                raise PeerLostError(f"rank {rank} is gone (its process has ended)", rank)

    def give_up(self, error: Error) -> None:
        """End the communicator on all ranks: they need not wait for this one, whose call has failed."""
        if isinstance(error, BootstrapError):  # ranks that do not come to a second communicator
            error = TimeoutError(str(error))
        self._backend.fail(error)
