"""`pycollective doctor --network`, under a launcher: this host's interfaces, and the routes from rank 0 to the others.

Plain TCP sockets, so that what is measured is the network and not this package. A connection must begin with the
job's random key before anything is answered; what follows it is counted or sent back, never interpreted.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pycollective.cli.doctor.findings import Finding, publish
from pycollective.comm.bootstrap.nodes import machine_key
from pycollective.comm.bootstrap.sockets.interfaces import interfaces as addresses_by_name
from pycollective.comm.bootstrap.sockets.this_host import host_name, loopback
from pycollective.comm.hosts import ucx

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator

_PINGS = 200
_SECONDS = 0.5
"""Duration of the measurement of bandwidth."""
_PATIENCE = 3.0
"""Seconds for a connection, and for each answer."""
_KEY = 16
_CHUNK = 1 << 18
_IOCTLS = (0x8921, 0x8913)
"""SIOCGIFMTU, SIOCGIFFLAGS: see netdevice(7)."""
_RUNNING = 0x41
"""IFF_UP and IFF_RUNNING."""
_CLOCK = struct.Struct("!q")


@dataclass(frozen=True)
class Route:
    """Measured between two ranks, over one address of the second."""

    round_trip: float  # seconds, the least of many
    bandwidth: float  # bytes/s
    clock: float  # seconds by which the second host's clock is ahead


def report(json_file: Path | None) -> int:
    """Collective among the ranks that a launcher has started. Rank 0 prints the findings.

    Returns:
        the exit code: 1 if a host cannot be reached.
    """
    import pycollective

    comm = pycollective.init()
    try:
        findings = between_hosts(comm)
        link = getattr(comm.backend, "link", "")
    finally:
        comm.free()
    return publish([*own_interfaces(), *links(link), *findings], json_file) if comm.rank == 0 else 0


@dataclass(frozen=True)
class Interface:
    """An address of a network interface of this host."""

    name: str
    address: str
    mtu: int
    up: bool


def interfaces() -> list[Interface]:
    """Those of all, without the loopback."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for name, addresses in addresses_by_name().items():
            request = struct.pack("256s", name.encode()[:15])
            try:
                mtu, flags = (fcntl.ioctl(asking, code, request)[16:24] for code in _IOCTLS)
            except OSError:  # it has just been removed
                continue
            up = struct.unpack("H", flags[:2])[0] & _RUNNING == _RUNNING
            for each in addresses:
                if not each.is_loopback:
                    found.append(Interface(name, str(each.ip), struct.unpack("i", mtu[:4])[0], up))
    return found


def own_interfaces() -> Iterator[Finding]:
    """A finding for each interface of this host."""
    found = interfaces()
    for one in found:
        yield Finding("network", one.name, f"{one.address}, MTU {one.mtu}", one.up or None, "" if one.up else "is down")
    if not found:
        yield Finding("network", "interfaces", "none", None, "no address but the loopback's")


def links(used: str) -> Iterator[Finding]:
    """The link between hosts that a communicator uses, "" on one host; and what UCX could use on this host."""
    if used:
        yield Finding("network", "link", used)
    try:
        yield Finding("network", "UCX", ucx.describe(next((one.address for one in interfaces()), loopback())))
    except OSError as error:
        yield Finding("network", "UCX", "unavailable", None, str(error))


def between_hosts(comm: Communicator) -> list[Finding]:
    """Collective: findings on rank 0, none on the others."""
    machine = machine_key()
    machines: list[tuple[str, str]] = comm.allgather_object((host_name(), machine))
    hosts = [host for host, _ in machines]
    others = [hosts.index(host) for host in dict.fromkeys(hosts) if host != hosts[0]]
    key: bytes = comm.broadcast_object(os.urandom(_KEY))
    with contextlib.ExitStack() as held:
        server = held.enter_context(ProbeServer(key)) if comm.rank in others else None
        own = [Interface("loopback", loopback(), 65536, True)] if machine == machines[0][1] else []
        reachable = interfaces() or own
        places: list[Any] = comm.allgather_object((reachable, server.port) if server else None)
        found = _to_all(hosts, {rank: places[rank] for rank in others}, key) if comm.rank == 0 else []
        comm.barrier()
    return found


def _to_all(hosts: list[str], places: dict[int, tuple[list[Interface], int]], key: bytes) -> list[Finding]:
    group = f"from rank 0 on {hosts[0]}"
    if not places:
        return [Finding(group, "other hosts", "none", None, "start this with a launcher, on two hosts or more")]
    found: list[Finding] = []
    for rank, (reachable, port) in places.items():
        for one in reachable:
            found.append(_to_one(group, f"rank {rank} on {hosts[rank]}, {one.name}", one.address, port, key))
        if not reachable:
            found.append(Finding(group, f"rank {rank} on {hosts[rank]}", "has no address", False))
    return found


def _to_one(group: str, name: str, address: str, port: int, key: bytes) -> Finding:
    try:
        path = measure(address, port, key)
    except OSError as error:
        return Finding(group, name, f"{address} cannot be reached", False, str(error))
    text = f"{address}: round trip {path.round_trip * 1e6:.0f} us, {path.bandwidth * 8 / 1e9:.3g} Gbit/s"
    return Finding(group, name, f"{text}, clock {path.clock * 1e3:+.2f} ms")


class ProbeServer:
    """Answers `measure` on a thread, one connection at a time, until the end of the with statement."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._socket = socket.create_server(("", 0), family=family, dualstack_ipv6=both)
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="pycollective-doctor", daemon=True)

    def __enter__(self) -> ProbeServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # ends accept()
        self._socket.close()
        self._thread.join(2 * _PATIENCE)

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), peer:
                peer.settimeout(_PATIENCE)
                self._answer(peer)

    def _answer(self, peer: socket.socket) -> None:
        if not hmac.compare_digest(_receive(peer, _KEY), self._key):
            return
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_PINGS):
            _receive(peer, 1)
            peer.sendall(_CLOCK.pack(time.time_ns()))
        count, buffer = 0, bytearray(_CHUNK)
        while received := peer.recv_into(buffer):
            count += received
        peer.sendall(_CLOCK.pack(count))


def measure(address: str, port: int, key: bytes) -> Route:
    """Round trips, then bytes in one direction for half a second, to a ProbeServer.

    Raises:
        OSError: it cannot be reached, or does not answer.
    """
    with socket.create_connection((address, port), _PATIENCE) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.sendall(key)
        least, clock = float("inf"), 0.0
        for _ in range(_PINGS):
            sent = time.time_ns()
            peer.sendall(b"?")
            [there] = _CLOCK.unpack(_receive(peer, _CLOCK.size))
            back = time.time_ns()
            if (back - sent) / 1e9 < least:
                least, clock = (back - sent) / 1e9, (there - (sent + back) / 2) / 1e9
        chunk, start = bytes(_CHUNK), time.monotonic()
        while time.monotonic() < start + _SECONDS:
            peer.sendall(chunk)
        peer.shutdown(socket.SHUT_WR)
        [count] = _CLOCK.unpack(_receive(peer, _CLOCK.size))
        return Route(least, count / (time.monotonic() - start), clock)


def _receive(peer: socket.socket, nbytes: int) -> bytes:
    """Exactly so many bytes; OSError if the peer closes before."""
    data = b""
    while len(data) < nbytes:
        more = peer.recv(nbytes - len(data))
        if not more:
            raise ConnectionResetError("the other side has closed the connection")
        data += more
    return data
