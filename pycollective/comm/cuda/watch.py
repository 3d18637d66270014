"""A thread that looks after kernels in flight: they cannot see that a peer's process is gone."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Protocol

from pycollective import _core

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator

SECONDS = 0.05


class Watched(Protocol):
    """What is looked after."""

    def look(self) -> None:
        """Tell the other ranks what a kernel has found."""
        ...

    def abort(self) -> None:
        """Let the kernels in flight give up."""
        ...


def watch(comm: Communicator, team: Watched) -> None:
    """Look after a communicator's kernels until it is freed or poisoned."""
    names = (weakref.ref(comm), weakref.ref(team))
    threading.Thread(target=_serve, args=names, name="pycollective-gpu-watch", daemon=True).start()


def _serve(comm_of: weakref.ref[Communicator], team_of: weakref.ref[Watched]) -> None:
    while True:
        time.sleep(SECONDS)
        comm, team = comm_of(), team_of()
        if comm is None or team is None or not isinstance(comm._backend, _core.Team) or comm._backend.closed:
            return
        backend = comm._backend
        team.look()
        for rank in range(comm.size):
            if rank != comm.rank and backend.gone(rank) and not backend.departed(rank):
                backend.report_lost(rank, f"the process of rank {rank} is gone")
        if backend.poisoned:
            team.abort()
            return
        del comm, team, backend
