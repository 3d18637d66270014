"""Announcements of messages to ranks of other hosts, over connections of their own; see mailbox.py."""

from __future__ import annotations

import contextlib
import os
import select
import struct
import time
from collections.abc import Sequence

from pycollective.comm.bootstrap.sockets.dialling import Endpoint
from pycollective.comm.host.segments import Exchange
from pycollective.comm.hosts.connections import connect_all
from pycollective.comm.hosts.network import Network
from pycollective.errors import CommunicatorError

_RECORD = struct.Struct("!Qi")  # bytes and tag of a message
_READ_BYTES = 256 * _RECORD.size


class HostsMailbox:
    """An Announcements for ranks that share no memory.

    Args:
        exchange, rank, size: of the process group; collective. network: of this process.

    Raises:
        BootstrapError: ranks cannot be reached.
    """

    def __init__(self, exchange: Exchange, rank: int, size: int, network: Network) -> None:
        purpose = exchange(os.urandom(16))[0]
        endpoints = [Endpoint.unpack(packed) for packed in exchange(network.listener.endpoint.pack())]
        others = [peer for peer in range(size) if peer != rank]
        deadline = time.monotonic() + network.timeout
        connected = connect_all(network.listener, endpoints, rank, others, purpose, 1, deadline)
        self._connections = {peer: connection for peer, (connection,) in connected.items()}
        self._received = {peer: bytearray() for peer in others}

    def room(self, dest: int) -> bool:
        """A connection counts as writable while much more than a record fits."""
        return self._poll([dest], select.POLLOUT, 0)

    def announce(self, dest: int, tag: int, nbytes: int) -> None:
        try:
            sent = self._connections[dest].send(_RECORD.pack(nbytes, tag))
        except OSError:
            return  # the peer is gone, which waits find out
        if sent < _RECORD.size:
            raise CommunicatorError(f"a message to rank {dest} could be announced only in part")

    def next(self, source: int) -> tuple[int, int] | None:
        received = self._received[source]
        if len(received) < _RECORD.size:
            with contextlib.suppress(OSError):  # nothing has arrived, or the peer is gone
                received += self._connections[source].recv(_READ_BYTES)
        if len(received) < _RECORD.size:
            return None
        nbytes, tag = _RECORD.unpack_from(received)
        return tag, nbytes

    def take(self, source: int) -> None:
        del self._received[source][: _RECORD.size]

    def await_room(self, dest: int, seconds: float) -> None:
        self._poll([dest], select.POLLOUT, seconds)

    def await_next(self, sources: Sequence[int], seconds: float) -> None:
        if all(len(self._received[source]) < _RECORD.size for source in sources):
            self._poll(sources, select.POLLIN, seconds)

    def _poll(self, peers: Sequence[int], event: int, seconds: float) -> bool:
        query = select.poll()
        for peer in peers:
            query.register(self._connections[peer], event)
        return bool(query.poll(1e3 * seconds))

    def close(self) -> None:
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                while connection.recv(_READ_BYTES):
                    pass  # unread data would make the kernel discard what the peer has not received yet
            connection.close()
