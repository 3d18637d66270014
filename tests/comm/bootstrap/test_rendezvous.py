"""The rendezvous socket of the ranks of one host, its faults and connections of other processes."""

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

import pytest

from meeting import fresh_name, on_threads
from pycollective.comm.bootstrap import one_host, rendezvous
from pycollective.comm.bootstrap.one_host import SocketBootstrap
from pycollective.comm.bootstrap.sockets.frames import pack, unpack
from pycollective.errors import BootstrapError

HEADER = struct.Struct("!BQ")
"""Header of a frame: kind and length."""


@pytest.mark.parametrize("size", [1, 2, 5, 16])
def test_threads_connect_and_gather(size: int) -> None:
    name = fresh_name()

    def rank(r: int) -> list[list[bytes]]:
        with_all = SocketBootstrap(name, r, size, kind="test", timeout=10)
        try:
            return [with_all.allgather(b"%d" % (r * 1000 + k)) for k in range(20)]
        finally:
            with_all.close()

    expected = [[b"%d" % (r * 1000 + k) for r in range(size)] for k in range(20)]
    assert on_threads([lambda r=r: rank(r) for r in range(size)]) == [expected] * size  # type: ignore[misc]


def test_rank_zero_may_arrive_last() -> None:
    name = fresh_name()

    def rank(r: int) -> list[bytes]:
        if r == 0:
            time.sleep(0.3)
        return SocketBootstrap(name, r, 3, kind="test", timeout=10).allgather(b"%d" % r)

    assert on_threads([lambda r=r: rank(r) for r in range(3)]) == [[b"0", b"1", b"2"]] * 3  # type: ignore[misc]


def test_a_second_world_of_the_same_name_follows_the_first() -> None:
    name = fresh_name()

    def rank(r: int) -> list[list[bytes]]:
        rounds = []
        for k in range(5):
            meeting = SocketBootstrap(name, r, 3, kind="test", timeout=10)
            rounds.append(meeting.allgather(b"%d.%d" % (k, r)))
            meeting.close()
        return rounds

    expected = [[b"%d.%d" % (k, r) for r in range(3)] for k in range(5)]
    assert on_threads([lambda r=r: rank(r) for r in range(3)]) == [expected] * 3  # type: ignore[misc]


def test_missing_ranks_are_named_on_every_rank() -> None:
    name = fresh_name()
    ranks = [0, 2, 4]
    errors = on_threads(
        [lambda r=r: SocketBootstrap(name, r, 5, kind="test", timeout=0.5) for r in ranks]  # type: ignore[misc]
    )
    for error in errors:
        assert isinstance(error, BootstrapError)
        assert "ranks 1, 3 of 5 have not arrived" in str(error)


def test_rank_zero_missing_is_named() -> None:
    started = time.monotonic()
    with pytest.raises(BootstrapError, match="rank 0 of 2 has not arrived"):
        SocketBootstrap(fresh_name(), 1, 2, kind="test", timeout=0.3)
    assert time.monotonic() - started < 2


def test_a_rank_missing_from_a_later_round_is_named() -> None:
    name = fresh_name()

    def rank(r: int) -> list[bytes]:
        meeting = SocketBootstrap(name, r, 3, kind="test", timeout=10)
        if r == 1:
            time.sleep(1.0)
            return []
        return meeting.allgather(b"", timeout=0.4)

    errors = on_threads([lambda r=r: rank(r) for r in range(3)])  # type: ignore[misc]
    for r in (0, 2):
        assert "rank 1 of 3 has not arrived" in str(errors[r])


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_leaves_is_noticed_at_once(victim: int) -> None:
    name = fresh_name()

    def rank(r: int) -> list[bytes]:
        meeting = SocketBootstrap(name, r, 3, kind="test", timeout=10)
        if r == victim:
            meeting.close()
            return []
        with pytest.raises(BootstrapError) as caught:
            meeting.allgather(b"")
        with pytest.raises(BootstrapError):  # and the bootstrap stays failed
            meeting.allgather(b"")
        raise caught.value

    started = time.monotonic()
    errors = on_threads([lambda r=r: rank(r) for r in range(3)])  # type: ignore[misc]
    assert time.monotonic() - started < 5
    for r in {0, 1, 2} - {victim}:
        assert f"rank {victim} left the rendezvous" in str(errors[r])


def test_a_rank_that_comes_after_the_rendezvous_has_failed_is_told_why() -> None:
    """Rank 0 fails while rank 3 is on its way: it waits for a moment, and tells it."""
    name = fresh_name()

    def late() -> SocketBootstrap:
        time.sleep(0.3)
        return SocketBootstrap(name, 3, 4, kind="t", timeout=30)

    def rank(r: int, size: int) -> SocketBootstrap:
        return SocketBootstrap(name, r, size, kind="t", timeout=30)

    started = time.monotonic()
    errors = on_threads([lambda: rank(0, 4), lambda: rank(1, 3), late])
    assert all("rank 1 was given a size of 3, rank 0 a size of 4" in str(error) for error in errors), errors
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
        name = fresh_name()
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", script, name, str(rank), str(short), str(left)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(3)
        ]
        needed = range(3) if short == 0 else [1]  # a rank that cannot connect cannot tell the others
        for rank in needed:
            text = ranks[rank].communicate(timeout=60)[0]
            assert f"rank {short} of 3: too many open files: its process may open" in text, (rank, text)
        for each in ranks:
            each.kill()
            each.wait()


def test_two_processes_with_one_rank_and_different_sizes() -> None:
    name = fresh_name()
    twins = [(0, 3), (1, 3), (1, 3)]
    errors = on_threads([lambda a=a: SocketBootstrap(name, *a, kind="t", timeout=2) for a in twins])  # type: ignore[misc]
    assert all("two processes claim rank 1" in str(error) for error in errors)
    name = fresh_name()
    odd = [(0, 2), (1, 3)]
    errors = on_threads([lambda a=a: SocketBootstrap(name, *a, kind="t", timeout=2) for a in odd])  # type: ignore[misc]
    assert all("rank 1 was given a size of 3, rank 0 a size of 2" in str(e) for e in errors)


def test_two_jobs_of_one_name_are_refused() -> None:
    name = fresh_name()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as squatter:
        squatter.bind("\0pycollective/" + name)
        squatter.listen()
        with pytest.raises(BootstrapError, match="cannot open the rendezvous socket"):
            SocketBootstrap(name, 0, 2, kind="test", timeout=1)


def test_another_user_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each side refuses a peer whose kernel-attested uid differs from its own."""
    name = fresh_name()
    monkeypatch.setattr(one_host, "peer_uid", lambda peer: os.getuid() + 1)
    errors = on_threads([lambda r=r: SocketBootstrap(name, r, 2, kind="t", timeout=0.4) for r in (0, 1)])  # type: ignore[misc]
    assert "rank 1 of 2 has not arrived" in str(errors[0])
    assert "held by another user" in str(errors[1])


def test_a_stray_connection_does_no_harm() -> None:
    name = fresh_name()

    def stray() -> None:
        for _ in range(200):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                try:
                    client.connect("\0pycollective/" + name)
                except ConnectionRefusedError:
                    time.sleep(0.005)
                    continue
                client.sendall(b"\xff" * 64)
                return

    def rank(r: int) -> list[bytes]:
        time.sleep(0.2 * r)
        return SocketBootstrap(name, r, 2, kind="t", timeout=10).allgather(b"%d" % r)

    results = on_threads([lambda: rank(0), lambda: rank(1), stray])
    assert results[:2] == [[b"0", b"1"]] * 2


def knock(name: str) -> socket.socket:
    """A connection to rank 0 of this name, as soon as it listens."""
    until = time.monotonic() + 10
    while True:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            client.connect("\0pycollective/" + name)
            return client
        except ConnectionRefusedError:
            client.close()
            assert time.monotonic() < until
            time.sleep(0.002)


@pytest.mark.parametrize("sent", [b"", HEADER.pack(1, 12)[:-1], HEADER.pack(1, 1 << 32) + b"x", HEADER.pack(2, 5)])
def test_connections_that_do_not_introduce_themselves_delay_no_rank(sent: bytes) -> None:
    """More of them than may wait at a time; one after the other, each would take five seconds."""
    name, left = fresh_name(), threading.Event()

    def stray() -> None:
        clients = [knock(name) for _ in range(100)]
        for client in clients:
            with contextlib.suppress(BrokenPipeError):
                client.sendall(sent)
        assert left.wait(15), "the ranks waited for connections that are still silent"
        for client in clients:
            client.close()

    def rank(r: int) -> list[bytes]:
        time.sleep(0.3 * r)
        gathered = SocketBootstrap(name, r, 2, kind="t", timeout=20).allgather(b"%d" % r)
        left.set()
        return gathered

    assert on_threads([lambda: rank(0), lambda: rank(1), stray]) == [[b"0", b"1"], [b"0", b"1"], None]


def introduce(name: str, rank: int, size: int) -> socket.socket:
    client = knock(name)
    client.sendall(HEADER.pack(1, 12) + struct.pack("!III", rendezvous._VERSION, rank, size))
    return client


def test_a_frame_allocates_no_memory_before_it_has_arrived() -> None:
    name = fresh_name()

    def peer() -> None:
        with introduce(name, 1, 2) as client:
            client.sendall(HEADER.pack(2, 1 << 24) + b"the beginning")
            time.sleep(0.2)

    def zero() -> int:
        tracemalloc.start()
        with pytest.raises(BootstrapError, match="rank 1 left"):
            SocketBootstrap(name, 0, 2, kind="t", timeout=5)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert on_threads([zero, peer])[0] < 1 << 20
    with pytest.raises(ValueError, match="more than"):
        SocketBootstrap(name, 0, 1, kind="t").allgather(bytes(rendezvous.MOST_BYTES + 1))


def test_a_rank_that_sends_half_a_frame_counts_as_missing() -> None:
    name, over = fresh_name(), threading.Event()

    def peer(rank: int, sent: bytes) -> None:
        with introduce(name, rank, 4) as client:
            client.sendall(sent)
            over.wait(10)

    def zero() -> str:
        with pytest.raises(BootstrapError) as caught:
            SocketBootstrap(name, 0, 4, kind="t", timeout=0.5)
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
    name = fresh_name()
    command = [sys.executable, "-c", textwrap.dedent(SQUAT), name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as squatter:
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == b"there\n"
        results = on_threads(
            [lambda r=r: SocketBootstrap(name, r, 3, kind="t", timeout=10).allgather(b"%d" % r) for r in range(3)]  # type: ignore[misc]
        )
        squatter.communicate()
    assert results == [[b"0", b"1", b"2"]] * 3


def test_nothing_is_left_behind() -> None:
    name = fresh_name()
    on_threads([lambda r=r: SocketBootstrap(name, r, 2, kind="t", timeout=10).close() for r in (0, 1)])  # type: ignore[misc]
    assert name not in Path("/proc/net/unix").read_text()


def test_pack_is_undone_by_unpack() -> None:
    for blobs in ([], [b""], [b"", b"a", b"bc" * 1000, b""]):
        assert unpack(pack(blobs)) == blobs
    for junk in (b"\0", pack([b"abc"])[:-1], b"\xff" * 8):
        with pytest.raises(ValueError, match=r"cut short|announced"):
            unpack(junk)
