"""Rendezvous across hosts: ranks connect to rank 0 by TCP, and each connection proves that it knows the job's token."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Callable, Sequence

from pycollective.comm.bootstrap.rendezvous import DEFAULT_TIMEOUT, Hello, Introduction, RendezvousBootstrap
from pycollective.comm.bootstrap.sockets.authentication import ACCEPTED, AcceptingEnd, Claim, digest
from pycollective.comm.bootstrap.sockets.dialling import Endpoint, dial
from pycollective.comm.bootstrap.sockets.interfaces import route_to
from pycollective.comm.bootstrap.sockets.lobby import Lobby
from pycollective.comm.bootstrap.sockets.this_host import host_name, loopback
from pycollective.errors import BootstrapError

_BACKLOG = 1024
_INFO_BYTES, _RETRANSMITS_AT = 8, 2  # of the kernel's struct tcp_info


class TcpBootstrap(RendezvousBootstrap):
    """Bootstrap over TCP; the constructor returns when all `size` ranks have connected to rank 0.

    Args:
        rank, size, kind, timeout, hint: as for RendezvousBootstrap.
        job: name of the job, the same on all ranks: a rank of another one, or of an earlier attempt, is refused.
        token: of the job, TOKEN_BYTES long.
        meet: called to connect: on rank 0 a listening socket, on the others where it listens.

    Attributes:
        token: as given.
        address: this rank's numeric address, at which rank 0 has seen it, or through which others reached rank 0.

    Raises:
        BootstrapError: as for RendezvousBootstrap, and if rank 0 cannot be reached: with address and reason.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        kind: str,
        job: str,
        token: bytes,
        meet: Callable[[], socket.socket | Endpoint],
        timeout: float = DEFAULT_TIMEOUT,
        hint: str = "",
    ) -> None:
        self.token, self._meet, self._tried = token, meet, ""
        self._places: dict[int, str] = {}
        self._purpose = purpose_of(token, job)
        super().__init__(rank, size, kind=kind, timeout=timeout, hint=hint)

    @property
    def address(self) -> str:
        """See the class; the loopback's if there are no others."""
        for peer in self._peers.values():
            return str(peer.getsockname()[0])
        return loopback()

    def _listen(self) -> Lobby[Hello]:
        listener = self._meet()
        assert isinstance(listener, socket.socket)
        self._tried = f"; rank 0 listened at {Endpoint(host_name(), *listener.getsockname()[:2])}"
        return lobby(listener, self.token, self._purpose)

    def _missing_text(self, missing: Sequence[int]) -> str:
        return super()._missing_text(missing) + self._tried

    def _admit(self, peer: socket.socket, hello: Hello) -> None:
        with contextlib.suppress(OSError):  # it has closed
            self._places[hello.rank] = str(peer.getpeername()[0])
        super()._admit(peer, hello)

    def _where(self, rank: int) -> str:
        return f" (on host {self._places[rank]})" if rank in self._places else ""

    def _silence(self, rank: int) -> str:
        info = self._peers[rank].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        if info[_RETRANSMITS_AT] == 0:
            return f"; rank {rank}{self._where(rank)} is connected, and sends nothing"
        return (
            f"; rank {rank}{self._where(rank)} is connected, but does not acknowledge what is sent to it: its host is "
            "cut off, or large packets are lost (check the MTU of the interfaces and of the network between them)"
        )

    def _connect(self, deadline: float) -> socket.socket:
        there = self._meet()
        assert isinstance(there, Endpoint)
        claim = Claim(self.rank, 0, 0, self._purpose)
        here = f"rank {self.rank} on host {host_name()}"
        while True:
            try:
                connection = dial(there, self.token, claim, deadline)
            except TimeoutError as error:
                reason = error
                break
            with contextlib.ExitStack() as unless_accepted:
                unless_accepted.enter_context(connection)
                if self._introduce(connection, deadline):
                    unless_accepted.pop_all()
                    self._places[0] = there.host
                    self._tried = f"; {here} was connected with rank 0 on host {there.host} at {there}"
                    return connection
        hint = f"; {self._hint}" if self._hint else ""
        raise BootstrapError(f"{here} cannot reach rank 0 on host {there.host} at {there}: {reason}{hint}")


def purpose_of(token: bytes, job: str) -> bytes:
    """What connections of the rendezvous of a job claim to be for."""
    return digest(token, b"rendezvous\0" + job.encode())


def lobby(listener: socket.socket, token: bytes, purpose: bytes) -> Lobby[Hello]:
    return Lobby(listener, lambda peer: _Authenticated(peer, token, purpose))


class _Authenticated:
    """A newcomer that proves that it knows the token, then introduces itself."""

    def __init__(self, peer: socket.socket, token: bytes, purpose: bytes) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._purpose, self._end = purpose, AcceptingEnd(token, peer)
        self._introduction: Introduction | None = None

    def advance(self, peer: socket.socket) -> Hello | None:
        if self._introduction is None:
            if self._end.advance(peer) is None:
                return None
            if self._end.claim.purpose != self._purpose:
                raise ValueError("a rank of another job, or of another attempt")
            self._end.send_verdict(peer, ACCEPTED)
            self._introduction = Introduction()
        return self._introduction.advance(peer)


def listen(address: str, port: int = 0) -> socket.socket:
    """A socket that listens on one numeric address of this host.

    Raises:
        BootstrapError: it cannot be bound; names the host and the reason.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A launcher may hold the port for us; see cli/launch/one_host.py.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        where = Endpoint(host_name(), address, port)
        text = f"host {where.host} cannot listen at {where if port else address}: {error.strerror}"
        raise BootstrapError(text) from None
    return listener


def resolve(host: str) -> str:
    """The numeric address of a host's name: one to which there is a route, IPv4 first; a numeric one is not changed.

    Raises:
        BootstrapError: the name does not resolve here.
    """
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        here = host_name()
        raise BootstrapError(f"the host name {host!r} does not resolve on host {here}: {error.strerror}") from None
    addresses = [str(entry[4][0]) for entry in sorted(found, key=lambda entry: entry[0] != socket.AF_INET)]
    return next((address for address in addresses if route_to(address)), addresses[0])


def meet_at(rank: int, host: str, port: int) -> Callable[[], socket.socket | Endpoint]:
    """Make `meet` of `TcpBootstrap`: rank 0 listens at a known address."""

    def meet() -> socket.socket | Endpoint:
        try:
            address = resolve(host)
        except BootstrapError as error:
            raise BootstrapError(f"rank {rank} cannot reach rank 0: {error}") from None
        return listen(address, port) if rank == 0 else Endpoint(host, address, port)

    return meet
