"""A thread that watches for kernels in flight: they cannot detect that a peer's process has ended."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Protocol

from pycollective.comm.host.team import HostTeam
from pycollective.errors import PeerLostError

SECONDS = 0.05


class Watched(Protocol):
    """The owner of watched kernels."""

    def look(self) -> None:
        """Report a kernel's fault to the other ranks."""
        ...

    def abort(self) -> None:
        """Abort the kernels in flight."""
        ...


def watch(host: HostTeam, watched: Watched) -> None:
    """Watch a communicator's kernels until it is freed or poisoned."""
    names = (weakref.ref(host), weakref.ref(watched))
    threading.Thread(target=_serve, args=names, name="pycollective-gpu-watch", daemon=True).start()


def _serve(host_of: weakref.ref[HostTeam], watched_of: weakref.ref[Watched]) -> None:
    while True:
        time.sleep(SECONDS)
        host, watched = host_of(), watched_of()
        if host is None or watched is None or host.team.closed:
            return
        watched.look()
        fail_if_lost(host)
        if host.team.poisoned:
            watched.abort()
            return
        del host, watched


def fail_if_lost(host: HostTeam) -> None:
    """Poison a communicator of which a process has ended."""
    lost = host.lost_peer()
    if lost is not None:
        host.fail(PeerLostError(f"the process of rank {lost} is gone", lost))
