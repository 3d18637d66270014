"""Dialling another rank's listening socket: nonblocking, repeated until it works, with the reason while it does not."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from dataclasses import dataclass

from pycollective.comm.bootstrap.sockets.authentication import AuthenticationError, Claim, DiallingEnd
from pycollective.comm.bootstrap.sockets.descriptors import are_used_up
from pycollective.comm.bootstrap.sockets.frames import pack, unpack
from pycollective.errors import BootstrapError

GIVE_UP_SECONDS = 5.0
"""How long a peer may refuse connections: it listened before it published its address, so waiting cannot help."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  # seconds between attempts
_CHOOSE = "PYCOLLECTIVE_INTERFACE chooses another address there"
_NO_ANSWER = f"no answer from there: a firewall, or an address that this host cannot reach ({_CHOOSE})"
_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH)
_MOST_TEXT = 256  # bytes of a host's name or address


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a rank listens, published to all ranks."""

    host: str
    """Its name, for errors."""
    address: str
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    def pack(self) -> bytes:
        return pack([self.host.encode()[:_MOST_TEXT], self.address.encode(), b"%d" % self.port])

    @staticmethod
    def unpack(data: bytes) -> Endpoint:
        """The inverse of `pack`.

        Raises:
            BootstrapError: not the form of this version of the package.
        """
        try:
            host, address, port = unpack(data)
            found = Endpoint(host.decode(errors="replace"), address.decode("ascii"), int(port))
        except ValueError:
            raise BootstrapError("a rank has published no address that this version of pycollective reads") from None
        return found


class Dial:
    """One connection to be made to one peer."""

    def __init__(self, to: Endpoint, token: bytes, claim: Claim) -> None:
        self.claim, self.reason = claim, "not tried"
        self.next_try = 0.0
        """When to try again; infinite while an attempt is in progress."""
        self._to, self._token = to, token
        self._refused_since = 0.0  # 0: not refused
        self._answer = ""  # how a listener, which may have closed since, has refused
        self._pause = _FIRST_PAUSE
        self._socket: socket.socket | None = None
        self._end: DiallingEnd | None = None

    def start_if_due(self, now: float, selector: selectors.BaseSelector) -> None:
        """Begin an attempt, unless one is in progress or it is too early. Raises OSError if no descriptor is left."""
        if now < self.next_try:
            return
        self._end, self.next_try = None, float("inf")
        family = socket.AF_INET6 if ":" in self._to.address else socket.AF_INET
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            error = self._socket.connect_ex((self._to.address, self._to.port))
            if error not in (0, errno.EINPROGRESS):
                raise OSError(error, os.strerror(error))
        except OSError as problem:
            if are_used_up(problem):
                raise
            self._failed(_text(problem))
            return
        if not self._refused_since:
            self.reason = _NO_ANSWER
        selector.register(self._socket, selectors.EVENT_WRITE, self)

    def advance(self, selector: selectors.BaseSelector) -> socket.socket | None:
        """Continue an attempt whose socket is ready; the connection once it is authenticated."""
        connection = self._socket
        assert connection is not None
        try:
            if self._end is None:
                error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error:
                    raise OSError(error, os.strerror(error))
                self._end = DiallingEnd(self._token, self.claim)
                self.reason = "what listens there accepts connections but does not answer"
                selector.modify(connection, selectors.EVENT_READ, self)
            done = self._end.advance(connection)
            if self._end.answered:
                self.reason = "its process runs, but has not called"
                self._refused_since = 0.0
        except (OSError, EOFError, AuthenticationError) as problem:
            selector.unregister(connection)
            reason = _text(problem)
            if not isinstance(problem, OSError):
                self._answer = reason
            elif self._answer:
                reason += f"; before, {self._answer}"
            self._failed(reason)
            return None
        if not done:
            return None
        selector.unregister(connection)
        self._socket = None
        return connection

    def hopeless(self, now: float) -> bool:
        """Return whether the peer has refused for so long that more attempts are pointless."""
        return bool(self._refused_since) and now - self._refused_since > GIVE_UP_SECONDS

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _failed(self, reason: str) -> None:
        self.close()
        now = time.monotonic()
        self.reason = reason
        self._refused_since = self._refused_since or now
        self.next_try, self._pause = now + self._pause, min(2 * self._pause, _LONGEST_PAUSE)


def dial(to: Endpoint, token: bytes, claim: Claim, deadline: float) -> socket.socket:
    """One authenticated connection, nonblocking; tries until the deadline.

    Raises:
        TimeoutError: there was none; the text is the reason of the last failure. OSError: no descriptor is left.
    """
    attempt = Dial(to, token, claim)
    with contextlib.closing(attempt), selectors.PollSelector() as selector:
        while (now := time.monotonic()) < deadline:
            attempt.start_if_due(now, selector)
            for _ in selector.select(max(0.0, min(deadline, attempt.next_try) - now)):
                connection = attempt.advance(selector)
                if connection is not None:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    return connection
    raise TimeoutError(attempt.reason)


def _text(problem: Exception) -> str:
    if isinstance(problem, EOFError):
        return "what listens there closed the connection: it belongs to another job, or its process has ended"
    text = str(getattr(problem, "strerror", None) or problem).lower()
    return f"{text} ({_CHOOSE})" if getattr(problem, "errno", 0) in _UNREACHABLE else text
