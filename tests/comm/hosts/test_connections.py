"""Connections between ranks of different hosts: the proof of the token, strangers, faults and errors."""

from __future__ import annotations

import contextlib
import gc
import select
import socket
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seeds import examples
from speed import until

from meeting import on_ranks, on_threads
from pycollective.comm.bootstrap.sockets.authentication import (
    AcceptingEnd,
    AuthenticationError,
    Claim,
    DiallingEnd,
    digest,
)
from pycollective.comm.bootstrap.sockets.dialling import Endpoint
from pycollective.comm.hosts.connections import Listener, connect_all
from pycollective.errors import BootstrapError, PeerLostError

TOKEN = bytes(range(16))


@pytest.fixture(autouse=True)
def closed_sockets() -> Iterator[None]:
    """The test's sockets are closed before another test counts its warnings."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class World:
    """Listeners of `size` ranks, each on a host of its own."""

    def __init__(self, size: int) -> None:
        self.listeners = [Listener("127.0.0.1", TOKEN, f"host{rank}") for rank in range(size)]
        self.endpoints = [Endpoint.unpack(each.endpoint.pack()) for each in self.listeners]

    def connect(
        self,
        rank: int,
        purpose: bytes = b"world",
        lanes: int = 1,
        seconds: float = 10,
        peers: list[int] | None = None,
        **more: Any,
    ) -> dict[int, list[socket.socket]]:
        others = [r for r in range(len(self.endpoints)) if r != rank] if peers is None else peers
        listener, end = self.listeners[rank], time.monotonic() + seconds
        return connect_all(listener, self.endpoints, rank, others, purpose, lanes, end, watched=[0], **more)

    def exchange(self, rank: int, *arguments: Any, **options: Any) -> None:
        """Connect as `connect` does; each connection leads to the right rank and lane."""
        found = self.connect(rank, *arguments, **options)
        lanes = [(peer, lane, each) for peer, lanes in found.items() for lane, each in enumerate(lanes)]
        for peer, lane, connection in lanes:
            assert not connection.getblocking()
            connection.settimeout(10)
            connection.sendall(b"%03d.%03d.%02d" % (rank, peer, lane))
        for peer, lane, connection in lanes:
            assert connection.recv(10, socket.MSG_WAITALL) == b"%03d.%03d.%02d" % (peer, rank, lane)

    def exchange_all(self, **options: Any) -> None:
        ok(on_ranks(range(len(self.listeners)), lambda rank: self.exchange(rank, **options)))


def ok(results: list[object]) -> None:
    assert results == [None] * len(results)


@pytest.mark.parametrize(("size", "lanes"), [(2, 1), (5, 3), (9, 8)])
def test_every_pair_is_connected_by_every_lane(size: int, lanes: int) -> None:
    World(size).exchange_all(lanes=lanes)


def test_hundreds_of_connections_to_one_rank() -> None:
    world = World(13)
    ok(on_ranks(range(13), lambda r: world.exchange(r, lanes=32, peers=[0] if r else None)))


def test_the_options_of_a_connection() -> None:
    world = World(2)
    for found in on_ranks((0, 1), lambda r: world.connect(r, lanes=2)):
        [(watched, other)] = found.values()  # type: ignore[attr-defined]
        for connection in (watched, other):
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert watched.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2000
        assert other.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0


def test_communicators_built_one_after_the_other_by_ranks_at_different_points() -> None:
    """A rank may dial for the next communicator while its peer still builds the one before."""
    world = World(3)

    def first() -> None:
        world.exchange(0, b"a", peers=[1, 2])
        world.exchange(0, b"b", peers=[2])

    def second() -> None:
        time.sleep(0.3)
        world.exchange(1, b"a", peers=[0])

    def third() -> None:
        world.exchange(2, b"a", peers=[0])
        world.exchange(2, b"b", peers=[0])

    ok(on_threads([first, second, third]))


def test_two_communicators_built_at_once_by_threads_in_another_order() -> None:
    world = World(2)

    def rank(r: int, purposes: tuple[bytes, bytes], turn: int) -> None:
        time.sleep(0.2 * turn)
        world.exchange(r, purposes[turn])

    orders = (b"a", b"b"), (b"b", b"a")
    ok(on_ranks(range(4), lambda number: rank(number // 2, orders[number // 2], number % 2)))


def hold(endpoint: Endpoint, count: int, first: bytes = b"") -> list[socket.socket]:
    """Connections of a stranger."""
    found = []
    for _ in range(count):
        connection = socket.create_connection((endpoint.address, endpoint.port))
        connection.sendall(first)
        found.append(connection)
    return found


@pytest.mark.parametrize("junk", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(range(148, 256)), bytes(4096)])
def test_strangers_delay_nobody_and_are_closed(junk: bytes) -> None:
    """At rank 0 more of them than its lobby holds."""
    world = World(3)
    strangers = hold(world.endpoints[0], 300, junk) + hold(world.endpoints[1], 50, junk)
    started = time.monotonic()
    world.exchange_all()
    assert time.monotonic() - started < 4  # less than a newcomer may be silent
    for listener in world.listeners:
        listener.close()
    for stranger in strangers:
        stranger.settimeout(5)
        heard = b""
        with contextlib.suppress(ConnectionResetError):
            while got := stranger.recv(4096):
                heard += got
        assert len(heard) in (0, 36)  # at most a challenge: no rank, no host, nothing made from the token


def test_another_token_is_refused_by_both_ends() -> None:
    world = World(2)
    other = Listener("127.0.0.1", bytes(16), "elsewhere")
    dial = partial(connect_all, other, world.endpoints, 1, [0], b"world", 1, time.monotonic() + 1)
    errors = on_threads([lambda: world.connect(0, seconds=1), dial])
    assert "rank 0 on host host0 was not reached at 127.0.0.1:" in str(errors[0])
    assert "by rank 1 on host host1" in str(errors[0])
    assert "rank 1 on host host1 cannot reach rank 0 on host host0 at 127.0.0.1:" in str(errors[1])
    assert "closed the connection: it belongs to another job" in str(errors[1])


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two sockets: one for the side that dials, which does not block, and one for the side that accepts."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


CLAIM = Claim(1, 0, 0, digest(TOKEN, b"world"))


def test_a_listener_without_the_token_learns_nothing_and_is_refused(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    impostor, dialling = AcceptingEnd(bytes(16), theirs), DiallingEnd(TOKEN, CLAIM)
    assert not dialling.advance(ours)
    with pytest.raises(AuthenticationError, match="another token"):
        impostor.advance(theirs)
    impostor.send_verdict(theirs, 0)
    with pytest.raises(AuthenticationError, match="has another token"):
        dialling.advance(ours)


def test_a_recorded_answer_cannot_be_used_again(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    first = AcceptingEnd(TOKEN, theirs)
    DiallingEnd(TOKEN, CLAIM).advance(ours)
    recorded = theirs.recv(4096, socket.MSG_PEEK)
    assert first.advance(theirs) is first
    assert first.claim == CLAIM
    again = AcceptingEnd(TOKEN, theirs)
    ours.sendall(recorded)
    with pytest.raises(AuthenticationError):
        again.advance(theirs)


@examples(150)
@given(at=st.integers(0, 200), flip=st.integers(1, 255), verdict=st.booleans())
def test_any_changed_byte_is_noticed(at: int, flip: int, verdict: bool) -> None:
    """In the answer by the end that accepts, in the challenge and in the verdict by the end that dials."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        dialling, accepting = DiallingEnd(TOKEN, Claim(7, 3, 1, bytes(32))), AcceptingEnd(TOKEN, theirs)
        assert not dialling.advance(ours)
        if not verdict:
            change(theirs, ours, at, flip)
            with pytest.raises(AuthenticationError):
                accepting.advance(theirs)
            return
        assert accepting.advance(theirs) is accepting
        assert accepting.claim == Claim(7, 3, 1, bytes(32))
        accepting.send_verdict(theirs, 0)
        change(ours, theirs, at, flip)
        with pytest.raises(AuthenticationError):
            dialling.advance(ours)


def change(reader: socket.socket, writer: socket.socket, at: int, flip: int) -> None:
    """Flip bits of a byte on the way to `reader`."""
    message = bytearray(reader.recv(4096))
    message[at % len(message)] ^= flip
    writer.sendall(message)


def test_two_processes_with_one_rank_are_an_error() -> None:
    world = World(3)  # rank 2 is missing, so that rank 0 still waits
    errors = on_threads([lambda: world.connect(0), *[lambda: world.connect(1, peers=[0], seconds=1)] * 2])
    assert "two processes claim rank 1" in str(errors[0])


def test_a_rank_that_dials_again_after_its_connection_broke_is_accepted() -> None:
    world = World(2)
    lost = socket.create_connection(world.listeners[0].address)
    lost.setblocking(False)
    dialling = DiallingEnd(TOKEN, CLAIM)

    def answered() -> bool:
        world.listeners[0].serve()
        if select.select([lost], [], [], 0.01)[0]:
            dialling.advance(lost)
        return dialling.answered

    until(answered)
    lost.close()
    world.exchange_all()


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_nobody_listens() -> None:
    world = World(2)
    world.listeners[0].close()
    text = r"rank 1 on host host1 cannot reach rank 0 on host host0 at 127\.0\.0\.1:\d+: connection refu"
    with pytest.raises(BootstrapError, match=text):
        world.connect(1, seconds=0.3)


def test_another_program_listens() -> None:
    world = World(2)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        world.endpoints[0] = Endpoint("host0", *other.getsockname())
        with pytest.raises(BootstrapError, match="accepts connections but does not answer"):
            world.connect(1, seconds=0.3)

        def greet() -> None:
            with contextlib.suppress(OSError):  # shut down
                while True:
                    peer, _ = other.accept()
                    with contextlib.suppress(OSError):
                        peer.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n")

        def connect() -> None:
            try:
                world.connect(1, seconds=1)
            finally:
                other.shutdown(socket.SHUT_RDWR)

        errors = on_threads([greet, connect])
    assert "is not pycollective, or another version of it" in str(errors[1])


def test_the_peer_has_not_called() -> None:
    world = World(2)
    world.listeners[0].serve()
    stop = time.monotonic() + 0.8

    def serve() -> None:
        while time.monotonic() < stop:
            world.listeners[0].serve()
            time.sleep(0.005)

    errors = on_threads([serve, lambda: world.connect(1, seconds=0.5)])
    assert "its process runs, but has not called" in str(errors[1])


def test_a_peer_that_is_lost_meanwhile_is_not_waited_for() -> None:
    def check() -> None:
        raise PeerLostError("rank 0 is gone", 0)

    with pytest.raises(PeerLostError, match="rank 0 is gone"):
        World(2).connect(1, check=check)


def test_missing_ranks_are_named_by_host_and_others_are_closed() -> None:
    world = World(4)
    error, found = on_threads([lambda: world.connect(0, seconds=0.5), lambda: world.connect(1, peers=[0])])
    assert "rank 2 on host host2" in str(error)
    assert "rank 3 on host host3" in str(error)
    assert "host1" not in str(error)
    [[connection]] = found.values()  # type: ignore[attr-defined]
    connection.settimeout(5)
    assert ended(connection)


def test_an_address_of_another_host_cannot_be_bound() -> None:
    with pytest.raises(BootstrapError, match=r"cannot listen at 203\.0\.113\.1: Cannot assign"):
        Listener("203.0.113.1", TOKEN, "b")


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(200, 240)), Endpoint("a", "b", 1).pack()[:-1]])
def test_a_published_address_of_another_form(data: bytes) -> None:
    with pytest.raises(BootstrapError, match="has published no address"):
        Endpoint.unpack(data)


def test_a_killed_process_is_noticed_at_once() -> None:
    world = World(2)
    code = f"""
        import time
        from pycollective.comm.hosts.connections import Listener, connect_all
        from pycollective.comm.bootstrap.sockets.dialling import Endpoint
        ends = [Endpoint.unpack(bytes.fromhex("{world.endpoints[0].pack().hex()}"))] * 2
        own = Listener("127.0.0.1", bytes.fromhex("{TOKEN.hex()}"), "b")
        found = connect_all(own, ends, 1, [0], b"world", 1, time.monotonic() + 20)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-I", "-c", textwrap.dedent(code)]) as process:
        [[connection]] = world.connect(0, seconds=20).values()
        process.kill()
        connection.settimeout(5)
        assert ended(connection)


def test_a_listener_that_nobody_uses_is_closed_without_a_collection() -> None:
    gc.disable()
    try:
        listener = Listener("127.0.0.1", TOKEN, "a")
        address = listener.address
        socket.create_connection(address, 5).close()
        del listener
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, 5)
    finally:
        gc.enable()
