"""How ranks find each other: detection from the environment, the socket rendezvous, MPI, nodes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from launch import find_mpirun, launch
from pycollective.comm import rendezvous
from pycollective.comm.bootstrap import Alone, Bootstrap, detect, launcher
from pycollective.comm.frames import pack, unpack
from pycollective.comm.nodes import discover, node_key, place
from pycollective.comm.rendezvous import SocketBootstrap
from pycollective.errors import BootstrapError

HEADER = struct.Struct("!BQ")
"""Of a frame: kind and length."""
needs_mpi = pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun")

MEET = """
    import sys
    from pycollective.comm.bootstrap import detect
    from pycollective.comm.nodes import discover
    b = detect()
    first = b.allgather(str(b.rank).encode() * (b.rank + 1))
    assert first == [str(r).encode() * (r + 1) for r in range(b.size)], first
    assert b.allgather(b"") == [b""] * b.size
    big = b.allgather(bytes([b.rank]) * 1_000_000)
    assert all(big[r] == bytes([r]) * 1_000_000 for r in range(b.size))
    n = discover(b)
    words = (b.kind, b.rank, b.size, n.local_rank, n.local_size, n.cross_rank, n.cross_size, n.count)
    sys.stdout.write(" ".join(map(str, words)) + "\\n")  # at once: torchrun's ranks share a pipe
    b.close()
    b.close()
"""


def own_variables(rank: int, size: int, name: str) -> dict[str, str]:
    return {
        "PYCOLLECTIVE_RANK": str(rank),
        "PYCOLLECTIVE_SIZE": str(size),
        "PYCOLLECTIVE_LOCAL_RANK": str(rank),
        "PYCOLLECTIVE_LOCAL_SIZE": str(size),
        "PYCOLLECTIVE_RENDEZVOUS": name,
    }


def torchrun_variables(rank: int, size: int, **more: str) -> dict[str, str]:
    fixed = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"2{os.getpid() % 10000}"}
    return fixed | {"RANK": str(rank), "WORLD_SIZE": str(size)} | more


def horovod_variables(rank: int, size: int, **more: str) -> dict[str, str]:
    meeting = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": f"3{os.getpid() % 10000}"}
    local = {"HOROVOD_LOCAL_RANK": str(rank), "HOROVOD_LOCAL_SIZE": str(size)}
    return {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(size)} | local | meeting | more


def on_threads(actions: list[Callable[[], object]], limit: float = 20) -> list[object]:
    """Each action on a thread of its own; results, or the exceptions they raised."""
    results: list[object] = [None] * len(actions)

    def call(i: int) -> None:
        try:
            results[i] = actions[i]()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit)
        assert not thread.is_alive(), "a rank hangs"
    return results


def slurm_variables(rank: int, size: int, **others: str) -> dict[str, str]:
    numbers = {"SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": size, "SLURM_JOB_ID": os.getpid(), "SLURM_STEP_ID": 0}
    return {name: str(number) for name, number in numbers.items()} | others


def fresh_name() -> str:
    return f"test/{os.getpid()}-{time.monotonic_ns()}"


# -- which launcher ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        ({}, "alone"),
        ({"RANK": "3"}, "alone"),
        ({"MASTER_ADDR": "host", "MASTER_PORT": "1"}, "alone"),
        (torchrun_variables(0, 2), "torchrun"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpi"),
        ({"PMI_RANK": "0"}, "mpi"),
        ({"PMI_SIZE": "4"}, "mpi"),
        ({"PMIX_RANK": "0"}, "mpi"),
        ({"MPI_LOCALNRANKS": "2"}, "mpi"),
        ({"PMIX_RANK": "0"} | torchrun_variables(0, 2), "mpi"),
        (own_variables(0, 2, "x") | {"PMIX_RANK": "0"} | torchrun_variables(0, 2), "pycollective"),
        ({"PYCOLLECTIVE_LOCAL_RANK": "0"}, "alone"),
        (horovod_variables(0, 2), "horovod"),
        ({"HOROVOD_RANK": "0"}, "alone"),
        (horovod_variables(0, 2) | torchrun_variables(0, 2), "horovod"),
        (horovod_variables(0, 2) | {"PMI_RANK": "0"}, "mpi"),
        (horovod_variables(0, 2, HOROVOD_CONTROLLER="gloo") | {"PMI_RANK": "0"}, "horovod"),
        (horovod_variables(0, 2, HOROVOD_CONTROLLER="gloo") | own_variables(0, 2, "x"), "pycollective"),
        (slurm_variables(0, 2), "slurm"),
        (slurm_variables(0, 1), "alone"),  # srun --pty bash
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}, "alone"),  # the script of a batch job
        (slurm_variables(0, 2) | {"PMI_RANK": "0"}, "mpi"),
        (slurm_variables(0, 2) | torchrun_variables(0, 2), "torchrun"),
    ],
)
def test_launcher_is_told_from_variables_in_order(env: dict[str, str], kind: str) -> None:
    assert launcher(env) == kind


HALF_HOROVOD = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}  # no address: another launcher must have started the process


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        (HALF_HOROVOD | torchrun_variables(1, 2), "torchrun"),
        (HALF_HOROVOD | slurm_variables(1, 2), "slurm"),
        (HALF_HOROVOD | {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "mpi"),
        ({"PYCOLLECTIVE_RANK": "1", "PYCOLLECTIVE_SIZE": "2"} | torchrun_variables(1, 2), "torchrun"),
        ({"PYCOLLECTIVE_RENDEZVOUS": "left over"} | torchrun_variables(1, 2), "torchrun"),
        ({"RANK": "1", "WORLD_SIZE": "2"} | horovod_variables(1, 2), "horovod"),
        (own_variables(1, 2, "x") | torchrun_variables(1, 2) | {"PMI_RANK": "1", "PMI_SIZE": "2"}, "pycollective"),
        (slurm_variables(1, 3) | torchrun_variables(2, 6), "torchrun"),  # srun starts a torchrun on each node
        (slurm_variables(0, 3) | {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "6"}, "mpi"),
        (horovod_variables(1, 2, HOROVOD_CONTROLLER="gloo") | {"PMI_RANK": "0", "PMI_SIZE": "1"}, "horovod"),
        ({"RANK": "worker", "WORLD_SIZE": "many"} | own_variables(1, 2, "x"), "pycollective"),
    ],
)
def test_of_several_launchers_the_first_complete_one_counts(env: dict[str, str], kind: str) -> None:
    assert launcher(env) == kind


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (HALF_HOROVOD | torchrun_variables(0, 2), ["HOROVOD_RANK=1 and HOROVOD_SIZE=2", "RANK=0 and WORLD_SIZE=2"]),
        (HALF_HOROVOD | torchrun_variables(1, 4), ["HOROVOD_SIZE=2 (Horovod", "WORLD_SIZE=4 (torchrun)"]),
        (
            torchrun_variables(2, 4) | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
            ["OMPI_COMM_WORLD_RANK=0 and OMPI_COMM_WORLD_SIZE=1 (mpirun)", "RANK=2 and WORLD_SIZE=4"],
        ),
        (torchrun_variables(2, 4) | {"PMIX_RANK": "0"}, ["PMIX_RANK=0 (mpirun)", "RANK=2"]),
        (own_variables(1, 2, "x") | {"PMI_RANK": "0"}, ["PYCOLLECTIVE_RANK=1", "PMI_RANK=0", "unset"]),
    ],
)
def test_launchers_that_contradict_each_other_are_shown(env: dict[str, str], words: list[str]) -> None:
    for ask in (launcher, detect):
        with pytest.raises(BootstrapError) as caught:
            ask(env)
        for word in ["contradict each other", *words]:
            assert word in str(caught.value)


def test_alone() -> None:
    found = detect({})
    assert isinstance(found, Alone)
    assert isinstance(found, Bootstrap)
    assert (found.rank, found.size, found.kind) == (0, 1, "alone")
    assert found.allgather(b"x") == [b"x"]
    found.close()


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (
            {"PYCOLLECTIVE_RANK": "0", "PYCOLLECTIVE_SIZE": "2"},
            ["PYCOLLECTIVE_RENDEZVOUS not", "pycollective run"],
        ),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ["MASTER_ADDR, MASTER_PORT not", "torchrun"]),
        (own_variables(2, 2, "x"), ["PYCOLLECTIVE_RANK=2", "do not fit"]),
        (own_variables(-1, 2, "x"), ["PYCOLLECTIVE_RANK=-1"]),
        (own_variables(0, 0, "x"), ["PYCOLLECTIVE_SIZE=0"]),
        (
            own_variables(0, 2, "x") | {"PYCOLLECTIVE_SIZE": "two"},
            ["PYCOLLECTIVE_SIZE='two'", "not an integer"],
        ),
        ({"PYCOLLECTIVE_INIT_TIMEOUT": "soon"}, ["PYCOLLECTIVE_INIT_TIMEOUT='soon'"]),
        ({"PYCOLLECTIVE_INIT_TIMEOUT": "nan"}, ["PYCOLLECTIVE_INIT_TIMEOUT='nan'"]),
        (torchrun_variables(0, 4, LOCAL_WORLD_SIZE="2"), ["4 ranks, of which 2 on this host", "mpirun"]),
        (horovod_variables(0, 4, HOROVOD_LOCAL_SIZE="2"), ["4 ranks, of which 2 on this host", "mpirun"]),
        (horovod_variables(2, 2), ["HOROVOD_RANK=2", "HOROVOD_SIZE=2"]),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, ["HOROVOD_GLOO_RENDEZVOUS_ADDR", "Horovod's launcher"]),
        (horovod_variables(1, 2), ["rank 0 of 2"]),
        (slurm_variables(0, 4, SLURM_STEP_NUM_NODES="2"), ["4 ranks on 2 nodes", "mpirun"]),
        (slurm_variables(4, 4), ["SLURM_PROCID=4", "SLURM_STEP_NUM_TASKS=4"]),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, ["SLURM_JOB_ID", "srun"]),
    ],
)
def test_wrong_variables_are_named(env: dict[str, str], words: list[str]) -> None:
    with pytest.raises(BootstrapError) as caught:
        detect(env, timeout=None if "PYCOLLECTIVE_INIT_TIMEOUT" in env else 0.2)
    for word in words:
        assert word in str(caught.value)


def test_mpirun_without_mpi4py_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    with pytest.raises(BootstrapError, match=r"pip install 'pycollective\[mpi\]'"):
        detect({"OMPI_COMM_WORLD_SIZE": "1"})


@needs_mpi
def test_mpirun_of_another_mpi_is_not_a_silent_world_of_one() -> None:
    script = """
        from pycollective.comm.bootstrap import detect
        from pycollective.errors import BootstrapError
        try:
            detect({"PMI_SIZE": "4", "PMI_RANK": "1"})
        except BootstrapError as error:
            print(error)
    """
    assert "mpirun started 4 ranks" in launch(1, script, launcher="mpirun", check=True)[0]


# -- the socket --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 5, 16])
def test_threads_meet_and_gather(size: int) -> None:
    name = fresh_name()

    def rank(r: int) -> list[list[bytes]]:
        with_all = SocketBootstrap(name, r, size, kind="test", timeout=10)
        try:
            return [with_all.allgather(b"%d" % (r * 1000 + k)) for k in range(20)]
        finally:
            with_all.close()

    expected = [[b"%d" % (r * 1000 + k) for r in range(size)] for k in range(20)]
    assert on_threads([lambda r=r: rank(r) for r in range(size)]) == [expected] * size  # type: ignore[misc]


def test_rank_zero_may_come_last() -> None:
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


def test_ranks_that_never_come_are_named_to_everybody() -> None:
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


def test_two_processes_with_one_rank_and_different_sizes() -> None:
    name = fresh_name()
    twins = [(0, 3), (1, 3), (1, 3)]
    errors = on_threads([lambda a=a: SocketBootstrap(name, *a, kind="t", timeout=2) for a in twins])  # type: ignore[misc]
    assert all("two processes call themselves rank 1" in str(error) for error in errors)
    name = fresh_name()
    odd = [(0, 2), (1, 3)]
    errors = on_threads([lambda a=a: SocketBootstrap(name, *a, kind="t", timeout=2) for a in odd])  # type: ignore[misc]
    assert all("rank 1 was told that there are 3 ranks, rank 0 that there are 2" in str(e) for e in errors)


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
    monkeypatch.setattr(rendezvous, "peer_uid", lambda peer: os.getuid() + 1)
    errors = on_threads([lambda r=r: SocketBootstrap(name, r, 2, kind="t", timeout=0.4) for r in (0, 1)])  # type: ignore[misc]
    assert "rank 1 of 2 has not arrived" in str(errors[0])
    assert "held by another user" in str(errors[1])


def test_a_stray_connection_does_not_disturb() -> None:
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
    """A connection to rank 0 of this name, as soon as it is there."""
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
def test_connections_that_do_not_introduce_themselves_keep_nobody_waiting(sent: bytes) -> None:
    """More of them than may wait at a time; each of them would have taken five seconds, one after the other."""
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
        met = SocketBootstrap(name, r, 2, kind="t", timeout=20).allgather(b"%d" % r)
        left.set()
        return met

    assert on_threads([lambda: rank(0), lambda: rank(1), stray]) == [[b"0", b"1"], [b"0", b"1"], None]


def introduce(name: str, rank: int, size: int) -> socket.socket:
    client = knock(name)
    client.sendall(HEADER.pack(1, 12) + struct.pack("!III", rendezvous._VERSION, rank, size))
    return client


def test_a_frame_costs_no_memory_before_it_has_come() -> None:
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


def test_a_rank_that_sends_half_a_frame_is_missing_like_one_that_sends_none() -> None:
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
    said = on_threads([zero, lambda: peer(1, half), lambda: peer(2, whole), lambda: peer(3, b"")])[0]
    assert "ranks 1, 3 of 4 have not arrived" in said


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


# -- launchers, as processes -------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 4])
def test_processes_meet_under_our_own_launcher(n: int) -> None:
    done = launch(n, MEET, check=True)
    assert [line.strip() for line in done] == [f"pycollective {r} {n} {r} {n} 0 1 1" for r in range(n)]


@needs_mpi
@pytest.mark.parametrize("n", [1, 4])
def test_processes_meet_under_mpirun(n: int) -> None:
    done = launch(n, MEET, launcher="mpirun", check=True)
    assert [line.strip() for line in done] == [f"mpi {r} {n} {r} {n} 0 1 1" for r in range(n)]


@needs_mpi
def test_mpi_names_the_ranks_that_never_come() -> None:
    script = """
        import time
        from mpi4py import MPI
        from pycollective.comm.bootstrap import detect
        from pycollective.errors import BootstrapError
        if MPI.COMM_WORLD.rank in (1, 2):
            time.sleep(1.5)
        else:
            try:
                detect(timeout=0.5)
            except BootstrapError as error:
                print(error)
        MPI.COMM_WORLD.Abort(0) if MPI.COMM_WORLD.rank == 1 else time.sleep(3)
    """
    done = launch(4, script, launcher="mpirun", timeout=30)
    for r in (0, 3):
        assert "ranks 1, 2 of 4 have not called" in done[r], done.report()


@needs_mpi
def test_mpi4py_initialised_without_variables_is_found() -> None:
    script = """
        from mpi4py import MPI
        from pycollective.comm.bootstrap import detect, launcher
        assert launcher({}) == "mpi"
        found = detect({})
        assert (found.kind, found.rank, found.size) == ("mpi", MPI.COMM_WORLD.rank, 2)
    """
    launch(2, script, launcher="mpirun", check=True)


def test_torchrun_variables_meet_and_restarts_do_not_mix() -> None:
    def rank(r: int, restart: str) -> list[bytes]:
        env = torchrun_variables(r, 2, TORCHELASTIC_RUN_ID="job", TORCHELASTIC_RESTART_COUNT=restart)
        found = detect(env, timeout=10)
        assert found.kind == "torchrun"
        return found.allgather(f"{restart}.{r}".encode())

    actions = [lambda r=r, k=k: rank(r, k) for k in "01" for r in (1, 0)]  # type: ignore[misc]
    zero, one = [b"0.0", b"0.1"], [b"1.0", b"1.1"]
    assert on_threads(actions) == [zero, zero, one, one]


def test_ranks_of_horovods_launchers_meet_and_jobs_do_not_mix() -> None:
    def rank(r: int, port: str) -> tuple[str, list[bytes]]:
        found = detect(horovod_variables(r, 2, HOROVOD_GLOO_RENDEZVOUS_PORT=port), timeout=10)
        return found.kind, found.allgather(f"{port}.{r}".encode())

    ports = [f"{os.getpid()}{k}" for k in "01"]
    actions = [lambda r=r, port=port: rank(r, port) for port in ports for r in (1, 0)]  # type: ignore[misc]
    assert on_threads(actions) == [
        ("horovod", [f"{port}.{r}".encode() for r in (0, 1)]) for port in ports for _ in range(2)
    ]
    assert detect({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}).allgather(b"x") == [b"x"]


def test_tasks_of_srun_meet_and_steps_do_not_mix() -> None:
    def rank(r: int, step: str) -> tuple[str, list[bytes]]:
        found = detect(slurm_variables(r, 2, SLURM_STEP_ID=step), timeout=10)
        return found.kind, found.allgather(f"{step}.{r}".encode())

    actions = [lambda r=r, step=step: rank(r, step) for step in "01" for r in (1, 0)]  # type: ignore[misc]
    assert on_threads(actions) == [("slurm", [f"{step}.{r}".encode() for r in (0, 1)]) for step in "01" for _ in "ab"]


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_processes_meet_under_torchrun(tmp_path: Path) -> None:
    """The real agent, which itself listens on MASTER_PORT."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(MEET))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"torchrun {r} 2 {r} 2 0 1 1" for r in range(2)]


def test_torchrun_of_two_hosts_is_told_about_mpirun() -> None:
    with pytest.raises(BootstrapError, match=r"one host only.*mpirun"):
        detect(torchrun_variables(1, 2), timeout=0.2)


# -- nodes -------------------------------------------------------------------------------------------------


def test_nodes_of_two_hosts_interleaved_and_uneven() -> None:
    keys = [b"a", b"b", b"a", b"c", b"b", b"a"]
    seen = [place(keys, r) for r in range(6)]
    assert seen[0].of == (0, 1, 0, 2, 1, 0)
    assert [n.local_rank for n in seen] == [0, 0, 1, 0, 1, 2]
    assert [n.local_size for n in seen] == [3, 2, 3, 1, 2, 3]
    assert [n.cross_rank for n in seen] == [0, 1, 0, 2, 1, 0]
    assert [n.cross_size for n in seen] == [3, 3, 2, 3, 2, 1]
    assert seen[2].ranks() == (0, 2, 5)
    assert seen[2].ranks(1) == (1, 4)
    assert seen[0].count == 3


def test_node_key_tells_namespaces_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = node_key()
    assert mine == node_key()
    monkeypatch.setattr(os, "readlink", lambda path: "pid:[1]")
    assert node_key() != mine


def test_discover_uses_the_bootstrap() -> None:
    assert discover(Alone()).of == (0,)
