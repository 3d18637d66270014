"""The rendezvous of the ranks of one host and of several, its faults and connections of other processes."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from meeting import fresh_name, on_ranks, on_threads
from pycollective.comm.bootstrap import one_host, rendezvous
from pycollective.comm.bootstrap.one_host import SocketBootstrap
from pycollective.comm.bootstrap.sockets.frames import pack, unpack
from pycollective.comm.bootstrap.tcp import TcpBootstrap, meet_at
from pycollective.errors import BootstrapError

HEADER = struct.Struct("!BQ")
"""Header of a frame: kind and length."""


class OneHost:
    """A place where ranks meet."""

    def __init__(self) -> None:
        self.name = fresh_name()

    def meet(self, rank: int, size: int, timeout: float = 10) -> rendezvous.RendezvousBootstrap:
        return SocketBootstrap(self.name, rank, size, kind="test", timeout=timeout)

    def dial(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.connect("\0pycollective/" + self.name)
        return client

    def knock(self) -> socket.socket:
        """A connection to rank 0, as soon as it listens."""
        until = time.monotonic() + 10
        while True:
            try:
                return self.dial()
            except ConnectionRefusedError:
                assert time.monotonic() < until
                time.sleep(0.002)


class SeveralHosts(OneHost):
    """The loopback stands for the network."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address: tuple[str, int] = probe.getsockname()

    def meet(self, rank: int, size: int, timeout: float = 10) -> rendezvous.RendezvousBootstrap:
        where = meet_at(rank, *self.address)
        return TcpBootstrap(rank, size, kind="test", job="job", token=bytes(range(16)), meet=where, timeout=timeout)

    def dial(self) -> socket.socket:
        return socket.create_connection(self.address)


@pytest.fixture(params=[OneHost, SeveralHosts])
def place(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.mark.parametrize("size", [1, 2, 5, 24])
def test_ranks_connect_and_gather(place: OneHost, size: int) -> None:
    def rank(r: int) -> list[list[bytes]]:
        time.sleep(0.2 * (r == 0))  # rank 0 may arrive last
        with contextlib.closing(place.meet(r, size)) as found:
            return [found.allgather(b"%d" % (r * 1000 + k)) for k in range(20)]

    expected = [[b"%d" % (r * 1000 + k) for r in range(size)] for k in range(20)]
    assert on_ranks(range(size), rank) == [expected] * size


def test_a_second_world_of_the_same_name_follows_the_first(place: OneHost) -> None:
    def rank(r: int) -> list[list[bytes]]:
        rounds = []
        for k in range(5):
            with contextlib.closing(place.meet(r, 3)) as found:
                rounds.append(found.allgather(b"%d.%d" % (k, r)))
        return rounds

    expected = [[b"%d.%d" % (k, r) for r in range(3)] for k in range(5)]
    assert on_ranks(range(3), rank) == [expected] * 3


def test_missing_ranks_are_named_on_every_rank(place: OneHost) -> None:
    for error in on_ranks((0, 2, 4), lambda r: place.meet(r, 5, 0.6)):
        assert isinstance(error, BootstrapError) and "ranks 1, 3 of 5 have not arrived" in str(error)


def test_a_rank_missing_from_a_later_round_is_named(place: OneHost) -> None:
    def rank(r: int) -> None:
        meeting = place.meet(r, 3)
        if r == 1:
            time.sleep(1.0)
            return
        with pytest.raises(BootstrapError, match="rank 1 of 3 has not arrived"):
            meeting.allgather(b"", timeout=0.4)

    assert on_ranks(range(3), rank) == [None] * 3


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_leaves_is_noticed_at_once(place: OneHost, victim: int) -> None:
    def rank(r: int) -> None:
        meeting = place.meet(r, 3)
        if r == victim:
            meeting.close()
            return
        for _ in range(2):  # the bootstrap stays failed
            with pytest.raises(BootstrapError, match=rf"rank {victim}( \(on host 127.0.0.1\))? left the rendezvous"):
                meeting.allgather(b"")

    started = time.monotonic()
    assert on_ranks(range(3), rank) == [None] * 3
    assert time.monotonic() - started < 5


def test_a_rank_that_comes_after_the_rendezvous_has_failed_is_told_why(place: OneHost) -> None:
    """Rank 0 fails while rank 3 is on its way: it waits for a moment, and tells it."""

    def rank(r: int) -> None:
        time.sleep(0.3 * (r == 3))
        place.meet(r, 3 if r == 1 else 4, 30)

    started = time.monotonic()
    for error in on_ranks((0, 1, 3), rank):
        assert "rank 1 was given a size of 3, rank 0 a size of 4" in str(error)
    assert time.monotonic() - started < 10


def test_a_rank_without_descriptors_says_so_and_is_not_taken_for_a_lost_one(tmp_path: Path) -> None:
    script = """
import os, resource, sys
from pycollective import BootstrapError
from pycollective.comm.bootstrap.one_host import SocketBootstrap

name, rank, short, left = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
if rank == short:
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1 + left,) * 2)
try:
    SocketBootstrap(name, rank, 3, kind="t", timeout=30)
except BootstrapError as error:
    print(error)
"""
    for short, left in ((0, 3), (1, 0)):
        command = [sys.executable, "-c", script, fresh_name()]
        numbers = [[str(rank), str(short), str(left)] for rank in range(3)]
        ranks = [subprocess.Popen([*command, *each], stdout=subprocess.PIPE, text=True) for each in numbers]
        needed = range(3) if short == 0 else [1]  # a rank that cannot connect cannot tell the others
        for rank in needed:
            text = ranks[rank].communicate(timeout=60)[0]
            assert f"rank {short} of 3: too many open files: its process may open" in text, (rank, text)
        for each in ranks:
            each.kill()
            each.wait()


def test_two_processes_with_one_rank(place: OneHost) -> None:
    for error in on_ranks((0, 1, 1), lambda r: place.meet(r, 3, 2)):
        assert "two processes claim rank 1" in str(error)
        assert ("the second is on 127.0.0.1" in str(error)) == isinstance(place, SeveralHosts)


def test_two_jobs_of_one_name_are_refused() -> None:
    place = OneHost()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as squatter:
        squatter.bind("\0pycollective/" + place.name)
        squatter.listen()
        with pytest.raises(BootstrapError, match="cannot open the rendezvous socket"):
            place.meet(0, 2, 1)


def test_another_user_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each side refuses a peer whose kernel-attested uid differs from its own."""
    monkeypatch.setattr(one_host, "peer_uid", lambda peer: os.getuid() + 1)
    place = OneHost()
    errors = on_ranks((0, 1), lambda r: place.meet(r, 2, 0.4))
    assert "rank 1 of 2 has not arrived" in str(errors[0])
    assert "held by another user" in str(errors[1])


@pytest.mark.parametrize(
    "sent", [b"", b"\xff" * 64, HEADER.pack(1, 12)[:-1], HEADER.pack(1, 1 << 32) + b"x", HEADER.pack(2, 5), bytes(200)]
)
def test_connections_that_do_not_introduce_themselves_delay_no_rank(place: OneHost, sent: bytes) -> None:
    """More of them than may wait at a time; one after the other, each would take five seconds."""
    left = threading.Event()

    def stray() -> None:
        clients = [place.knock() for _ in range(300)]
        for client in clients:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                client.sendall(sent)
        assert left.wait(15), "the ranks waited for connections that are still silent"
        for client in clients:
            client.close()

    def rank(r: int) -> list[bytes]:
        time.sleep(0.3 * r)
        gathered = place.meet(r, 2, 20).allgather(b"%d" % r)
        left.set()
        return gathered

    assert on_threads([lambda: rank(0), lambda: rank(1), stray]) == [[b"0", b"1"], [b"0", b"1"], None]


def introduce(place: OneHost, rank: int, size: int) -> socket.socket:
    client = place.knock()
    client.sendall(HEADER.pack(1, 12) + struct.pack("!III", rendezvous._VERSION, rank, size))
    return client


def test_a_frame_allocates_no_memory_before_it_has_arrived() -> None:
    place = OneHost()

    def peer() -> None:
        with introduce(place, 1, 2) as client:
            client.sendall(HEADER.pack(2, 1 << 24) + b"the beginning")
            time.sleep(0.2)

    def zero() -> int:
        tracemalloc.start()
        with pytest.raises(BootstrapError, match="rank 1 left"):
            place.meet(0, 2, 5)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert on_threads([zero, peer])[0] < 1 << 20
    with pytest.raises(ValueError, match="more than"):
        place.meet(0, 1).allgather(bytes(rendezvous.MOST_BYTES + 1))


def test_a_rank_that_sends_half_a_frame_counts_as_missing() -> None:
    place, over = OneHost(), threading.Event()

    def peer(rank: int, sent: bytes) -> None:
        with introduce(place, rank, 4) as client:
            client.sendall(sent)
            over.wait(10)

    def zero() -> str:
        with pytest.raises(BootstrapError) as caught:
            place.meet(0, 4, 0.5)
        over.set()
        return str(caught.value)

    half, whole = HEADER.pack(2, 10) + b"half", HEADER.pack(2, 0)
    error = on_threads([zero, lambda: peer(1, half), lambda: peer(2, whole), lambda: peer(3, b"")])[0]
    assert "ranks 1, 3 of 4 have not arrived" in error


SQUAT = """
    import os, socket, sys
    os.setgid(65534)
    os.setuid(65534)
    held = []
    for number, listens in enumerate([5, None, 0]):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.bind("\\0pycollective/" + sys.argv[1] + (f"~{number}" if number else ""))
        held.append(one)
        if listens is not None:
            one.listen(listens)
        if listens == 0:  # no room for one more
            held += [full := socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)]
            full.connect(one.getsockname())
    print("there", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user too")
def test_another_user_holds_the_first_names() -> None:
    place = OneHost()
    command = [sys.executable, "-c", textwrap.dedent(SQUAT), place.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as squatter:
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == b"there\n"
        results = on_ranks(range(3), lambda r: place.meet(r, 3).allgather(b"%d" % r))
        squatter.communicate()
    assert results == [[b"0", b"1", b"2"]] * 3


def test_nothing_is_left_behind() -> None:
    place = OneHost()
    on_ranks((0, 1), lambda r: place.meet(r, 2).close())
    assert place.name not in Path("/proc/net/unix").read_text()


def test_pack_is_undone_by_unpack() -> None:
    for blobs in ([], [b""], [b"", b"a", b"bc" * 1000, b""]):
        assert unpack(pack(blobs)) == blobs
    for junk in (b"\0", pack([b"abc"])[:-1], b"\xff" * 8):
        with pytest.raises(ValueError, match=r"cut short|announced"):
            unpack(junk)
