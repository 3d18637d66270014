"""Single-host rendezvous: ranks connect through an abstract UNIX socket.

An abstract socket exists only in the kernel, so no file is left behind whichever signal ends a rank. Any user of the
host may bind or connect to an abstract name. So both ends check the other's uid (SO_PEERCRED), and rank 0 takes another
name if another user holds the first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence

from pycollective.comm.bootstrap.rendezvous import DEFAULT_TIMEOUT, Hello, Introduction, RendezvousBootstrap
from pycollective.comm.bootstrap.sockets.lobby import Lobby
from pycollective.errors import BootstrapError

NAMES = 16
"""Possible names of the socket: rank 0 takes the first one not held by another user."""
_BACKLOG = 1024
_BIND_SECONDS = 0.2  # between bind and listen, rank 0 looks like another user's process


class SocketBootstrap(RendezvousBootstrap):
    """Bootstrap over one abstract UNIX socket; the constructor returns when all `size` ranks have connected.

    Args:
        name: the same on all ranks; any string, without the leading NUL of abstract names.
        rank, size, and what follows: as for RendezvousBootstrap.

    Raises:
        BootstrapError: as for RendezvousBootstrap, and if other users hold all names of the socket.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        size: int,
        *,
        kind: str,
        timeout: float = DEFAULT_TIMEOUT,
        hint: str = "",
        look: Callable[[], str] = str,
    ) -> None:
        self._addresses = addresses_of(name)
        super().__init__(rank, size, kind=kind, timeout=timeout, hint=hint, look=look)

    def _connect(self, deadline: float) -> socket.socket:
        """Connect to rank 0, which may not have started yet, and may have taken any of the names."""
        pause, stranger = 0.0002, ""
        while True:
            for address in self._addresses:
                peer = dial(address)
                if peer is None:
                    continue
                with contextlib.ExitStack() as unless_accepted:
                    unless_accepted.enter_context(peer)
                    if (uid := peer_uid(peer)) != os.geteuid():
                        stranger = f"; the rendezvous socket of this job is held by another user (uid {uid})"
                    elif self._introduce(peer, deadline):
                        unless_accepted.pop_all()
                        return peer
            if time.monotonic() >= deadline:
                raise BootstrapError(self._missing_text([0]) + stranger)
            self._raise_if_known()
            time.sleep(pause)
            pause = min(pause * 1.5, 0.01)

    def _listen(self) -> Lobby[Hello]:
        return listen(self._addresses)


def addresses_of(name: str) -> list[str]:
    """The names that the socket of a rendezvous may have, in the order in which rank 0 tries them."""
    first = "\0pycollective/" + name
    return [first, *(f"{first}~{number}" for number in range(1, NAMES))]


def listen(addresses: Sequence[str]) -> Lobby[Hello]:
    """Where ranks connect to rank 0: at the first name not held by another user.

    Raises:
        BootstrapError: there is none, or this user has bound it already.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if not any(_bind(listener, address) for address in addresses):
            raise BootstrapError(f"rank 0 cannot open the rendezvous socket: other users hold its {NAMES} names")
        listener.listen(_BACKLOG)
        return Lobby(listener, _greet)
    except BaseException:
        listener.close()
        raise


def _greet(peer: socket.socket) -> Introduction | None:
    """Other users' connections are closed at once."""
    return Introduction() if peer_uid(peer) == os.geteuid() else None


def dial(address: str) -> socket.socket | None:
    """A connection to an address, nonblocking; None if no process listens there, or its backlog is full."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.setblocking(False)
        peer.connect(address)
    except (ConnectionRefusedError, BlockingIOError):
        peer.close()
        return None
    except BaseException:
        peer.close()
        raise
    return peer


def _bind(listener: socket.socket, address: str) -> bool:
    """Bind an address; False if another user has it.

    Raises:
        BootstrapError: this user has bound it already.
    """
    until = time.monotonic() + _BIND_SECONDS
    while True:
        try:
            listener.bind(address)
            return True
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise BootstrapError(f"rank 0 cannot open the rendezvous socket: {error}") from error
            holder = dial(address)
        if holder is not None:
            with holder:
                if peer_uid(holder) != os.geteuid():
                    return False
            raise BootstrapError(
                "rank 0 cannot open the rendezvous socket: its name is in use; is another job with the same name, or "
                "a second process that claims rank 0, running on this host?"
            )
        if time.monotonic() >= until:
            return False
        time.sleep(0.002)


def peer_uid(peer: socket.socket) -> int:
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)
