"""A listening socket, and the connections to it that have not shown yet that they belong to the job.

These are limited in number and time, and none waits for another: a stranger, or a silent or slow connection, delays
nobody.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from pycollective.comm.bootstrap.sockets.descriptors import are_used_up

MOST_NEWCOMERS = 256
SECONDS = 5.0
"""How long a connection may take to introduce itself."""
_YOUNG = 0.5  # seconds in which a newcomer is not closed in favour of later ones
_AT_A_TIME = 64  # connections accepted before newcomers are heard again
_Known = TypeVar("_Known", covariant=True)


class Newcomer(Protocol[_Known]):
    """A connection that introduces itself."""

    def advance(self, peer: socket.socket) -> _Known | None:
        """What the newcomer is, once it is known. Raises OSError, EOFError or ValueError if it is to be closed."""
        ...


class Lobby(Generic[_Known]):
    """Accepts connections and hears them; nonblocking.

    Args:
        listener: a listening socket; closed by `close`.
        admit: called with each new connection; None: it is closed at once.
    """

    def __init__(self, listener: socket.socket, admit: Callable[[socket.socket], Newcomer[_Known] | None]) -> None:
        self._listener, self._admit = listener, admit
        listener.setblocking(False)
        self._selector = selectors.EpollSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._waiting: dict[socket.socket, tuple[Newcomer[_Known], float]] = {}  # and time of arrival, in this order
        self._spare = listener.dup()  # its descriptor is given up when there is no other: callers can be refused

    def fileno(self) -> int:
        """Readable if `serve` has something to do, for another selector."""
        return self._selector.fileno()

    def serve(self, pause: float = 0.0) -> list[tuple[socket.socket, _Known]]:
        """Wait for at most so many seconds; the connections that have introduced themselves are now the caller's.

        Raises:
            OSError: no descriptor is left (descriptors.are_used_up) to accept a connection with. From then on there is
                one, for as long as the caller closes each connection at once.
        """
        now = time.monotonic()
        first = min((since + SECONDS for _, since in self._waiting.values()), default=now + pause)
        found = []
        for key, _ in self._selector.select(max(0.0, min(pause, first - now))):
            if key.fileobj is not self._listener:
                found += self._hear(key.fileobj)  # type: ignore[arg-type]
            else:
                for peer in self._accept():
                    found += self._hear(peer)  # what was sent at once arrives with the connection
        now = time.monotonic()
        for peer, (_, since) in [*self._waiting.items()]:
            if now >= since + SECONDS:
                self._dismiss(peer)
        return found

    def close(self) -> None:
        for peer in [*self._waiting]:
            self._dismiss(peer)
        self._selector.close()
        self._spare.close()
        self._listener.close()

    def _accept(self) -> list[socket.socket]:
        peers = []
        for _ in range(_AT_A_TIME):
            if len(self._waiting) >= MOST_NEWCOMERS and not self._make_room():
                time.sleep(0.001)  # the listening socket stays readable
                break
            try:
                peer, _ = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                break
            except OSError as error:
                self._spare.close()
                if not self._make_room():
                    if are_used_up(error) and not self._waiting:
                        raise
                    time.sleep(0.001)
                break
            peer.setblocking(False)
            try:
                newcomer = self._admit(peer)
            except OSError:
                newcomer = None
            if newcomer is None:
                peer.close()
                continue
            self._waiting[peer] = newcomer, time.monotonic()
            self._selector.register(peer, selectors.EVENT_READ)
            peers.append(peer)
        return peers

    def _make_room(self) -> bool:
        """Close the oldest newcomer, unless it is young."""
        oldest = next(iter(self._waiting), None)
        if oldest is None or time.monotonic() < self._waiting[oldest][1] + _YOUNG:
            return False
        self._dismiss(oldest)
        return True

    def _hear(self, peer: socket.socket) -> list[tuple[socket.socket, _Known]]:
        if peer not in self._waiting:  # closed in favour of a later one
            return []
        try:
            known = self._waiting[peer][0].advance(peer)
        except (OSError, EOFError, ValueError):
            self._dismiss(peer)
            return []
        if known is None:
            return []
        self._selector.unregister(peer)
        del self._waiting[peer]
        return [(peer, known)]

    def _dismiss(self, peer: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer)
        del self._waiting[peer]
        peer.close()
