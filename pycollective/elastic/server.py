"""The driver's end of the connections to its workers; nonblocking. bootstrap/elastic_messages.py has the messages."""

from __future__ import annotations

import contextlib
import functools
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pycollective.comm.bootstrap import elastic_messages as messages
from pycollective.comm.bootstrap.elastic import detect_loss
from pycollective.comm.bootstrap.sockets.authentication import ACCEPTED, DUPLICATE, UNEXPECTED, AcceptingEnd, digest
from pycollective.comm.bootstrap.sockets.dialling import Endpoint
from pycollective.comm.bootstrap.sockets.frames import Reader, frame
from pycollective.comm.bootstrap.sockets.lobby import Lobby
from pycollective.comm.bootstrap.tcp import listen


@dataclass
class _Peer:
    number: int
    socket: socket.socket
    reader: Reader = field(default_factory=lambda: Reader(messages.MOST_BYTES))
    unsent: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True)
class Event:
    """A worker's message; kind GONE: its connection has ended."""

    worker: int
    kind: int
    payload: bytes = b""


GONE = 0


class Server:
    """Accepts the workers' connections, which prove that they know the job's token.

    Args:
        expects: whether a worker of this number runs.
    """

    def __init__(self, token: bytes, expects: Callable[[int], bool]) -> None:
        self._token, self._expects = token, expects
        self._purpose = digest(token, messages.PURPOSE)
        self._selector = selectors.DefaultSelector()
        self._ports: dict[str, int] = {}
        self._lobbies: list[Lobby[AcceptingEnd]] = []
        self._peers: dict[int, _Peer] = {}

    def listen(self, address: str) -> str:
        """Listen at a numeric address of this host, from now on; returns ADDRESS:PORT.

        Raises:
            BootstrapError: it cannot be bound.
        """
        if address not in self._ports:
            listener = listen(address)
            self._ports[address] = listener.getsockname()[1]
            lobby: Lobby[AcceptingEnd] = Lobby(listener, functools.partial(AcceptingEnd, self._token))
            self._lobbies.append(lobby)
            self._selector.register(lobby, selectors.EVENT_READ, lobby)
        return str(Endpoint("", address, self._ports[address]))

    def serve(self, pause: float) -> list[Event]:
        """Wait for at most so many seconds; what the workers have sent."""
        events = []
        for key, ready in self._selector.select(pause):
            if isinstance(key.data, _Peer):
                events += self._exchange(key.data, ready)
        for lobby in self._lobbies:
            try:
                known = lobby.serve()
            except OSError:  # no descriptor is left; a worker may end
                time.sleep(0.01)
                continue
            for peer, end in known:
                self._admit(peer, end)
        return events

    def send(self, worker: int, kind: int, payload: bytes = b"") -> None:
        """Send a message; nothing happens if the connection has ended."""
        if worker in self._peers:
            peer = self._peers[worker]
            peer.unsent += frame(kind, payload)
            self._flush(peer)

    def drop(self, worker: int) -> None:
        peer = self._peers.pop(worker, None)
        if peer is not None:
            self._selector.unregister(peer.socket)
            peer.socket.close()

    def close(self) -> None:
        for worker in [*self._peers]:
            self.drop(worker)
        for lobby in self._lobbies:
            lobby.close()
        self._selector.close()

    def _admit(self, peer: socket.socket, end: AcceptingEnd) -> None:
        number = end.claim.rank
        verdict = UNEXPECTED if not self._expects(number) else DUPLICATE if number in self._peers else ACCEPTED
        try:
            if end.claim.purpose != self._purpose:
                raise OSError("a rank of the job, not a worker that asks for the driver")
            end.send_verdict(peer, verdict)
            if verdict != ACCEPTED:
                raise OSError("a worker that is not expected")
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            detect_loss(peer)
        except OSError:
            peer.close()
            return
        self._peers[number] = _Peer(number, peer)
        self._selector.register(peer, selectors.EVENT_READ, self._peers[number])

    def _exchange(self, peer: _Peer, ready: int) -> list[Event]:
        if self._peers.get(peer.number) is not peer:
            return []
        if ready & selectors.EVENT_WRITE:
            self._flush(peer)
        events = []
        try:
            while (found := peer.reader.read(peer.socket)) is not None:
                events.append(Event(peer.number, *found))
        except (OSError, EOFError, ValueError):
            self.drop(peer.number)
            events.append(Event(peer.number, GONE))
        return events

    def _flush(self, peer: _Peer) -> None:
        with contextlib.suppress(OSError):  # no room now; a lost connection is detected by reading
            del peer.unsent[: peer.socket.send(peer.unsent)]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        self._selector.modify(peer.socket, wanted, peer)
