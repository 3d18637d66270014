"""The wire: what an allreduce of two ranks must exchange, through one plain TCP socket, without adding anything.

Each half of the array crosses in both directions at once, the second after the first, as in a reduce-scatter and an
allgather.  The result is that of no collective and is therefore not checked.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from . import Array, Call, Peer, PeerUnavailable

if TYPE_CHECKING:
    from ..ranks.world import World
    from ..workload.cases import Case

__all__ = ["SocketsPeer", "open"]

_SECONDS = 60.0


class SocketsPeer(Peer):
    """Only allreduce, on two ranks.

    Args:
        connection: with the other rank.
    """

    name = "sockets"
    checked = False

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        self._connection = connection

    def supports(self, case: Case) -> bool:
        return case.collective == "allreduce" and case.ranks == 2

    def allreduce(self, send: Array, recv: Array, op: str) -> Call:
        given, taken = send.data.cast("B"), recv.data.cast("B")
        half = len(given) // 2

        def call() -> None:
            self._exchange(given[:half], taken[:half])
            self._exchange(given[half:], taken[half:])

        return call

    def _exchange(self, given: memoryview, taken: memoryview) -> None:
        connection = self._connection
        while given or taken:
            with contextlib.suppress(BlockingIOError):
                if given:
                    given = given[connection.send(given) :]
            with contextlib.suppress(BlockingIOError):
                if taken:
                    taken = taken[connection.recv_into(taken) :]

    def close(self) -> None:
        self._connection.close()


def open(world: World) -> SocketsPeer:
    """A connection between the two ranks of this world; PeerUnavailable for other numbers of ranks."""
    if world.size != 2:
        raise PeerUnavailable(f"plain sockets are measured between two ranks, not {world.size}")
    with socket.create_server(("", 0)) as listener:
        listener.settimeout(_SECONDS)
        address = world.share((socket.gethostname(), listener.getsockname()[1]))[0]
        made = listener.accept()[0] if world.rank == 0 else socket.create_connection(address, _SECONDS)
    return SocketsPeer(made)
