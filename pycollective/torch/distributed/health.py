"""What ends a process group: its calls are made on two communicators, and what ends one of them ends the other."""

from __future__ import annotations

from typing import Any

from pycollective.comm.communicator import Communicator
from pycollective.comm.rail_calls import RailCalls
from pycollective.errors import BootstrapError, Error, MismatchError, PeerLostError, TimeoutError


class Health:
    """Args: comm: the process group's communicator. Between hosts MPI looks after the ranks."""

    def __init__(self, comm: Communicator) -> None:
        self._team: Any = None if isinstance(comm._backend, RailCalls) else comm._backend

    def require_sound(self) -> None:
        """Raise what has ended the communicator."""
        if self._team is not None:
            self._team.require_sound()

    def check(self) -> None:
        """The same, and PeerLostError for a rank whose process has ended."""
        self.require_sound()
        if self._team is None:
            return
        for rank in range(self._team.size):
            if rank != self._team.rank and self._team.gone(rank):
                raise PeerLostError(f"rank {rank} is gone (its process has ended)", rank)

    def give_up(self, error: Error) -> None:
        """End the communicator on all ranks: they need not wait for this one, whose call has failed."""
        if self._team is None:
            return
        text = str(error)
        if isinstance(error, PeerLostError):
            self._team.report_lost(error.rank, text)
        elif isinstance(error, MismatchError):
            self._team.report_mismatch(-1, text)
        elif isinstance(error, (BootstrapError, TimeoutError)):  # ranks that do not come to a second communicator
            self._team.report_timeout(-1, text)
        else:
            self._team.give_up(text)
