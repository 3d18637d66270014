"""A rank killed by SIGKILL: every other rank raises PeerLostError within a second, and nothing is left behind."""

from __future__ import annotations

import itertools
import threading
import time
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from calls import MOVING, REDUCING, call, place, sum_that
from processes import IMPORTABLE, Job, Outcome, alive, all_say, shared_memory

from launch import launch
from pycollective import Communicator, PeerLostError, local_world
from pycollective.comm.host import shrink

SPINNING = {"PYCOLLECTIVE_SPIN_US": "inf"}
YIELDING = {"PYCOLLECTIVE_SPIN_US": "0", "PYCOLLECTIVE_YIELD_US": "inf"}
SLEEPING = {"PYCOLLECTIVE_SPIN_US": "0", "PYCOLLECTIVE_YIELD_US": "0"}


def check(outcomes: dict[int, Outcome], victim: int, killed_at: float) -> None:
    """Every survivor raised PeerLostError naming the victim within a second; no other rank died."""
    assert outcomes[victim].exitcode == -9
    for rank, outcome in outcomes.items():
        if rank == victim:
            continue
        assert isinstance(outcome.error, PeerLostError), f"rank {rank}: {outcome.error!r}\n{outcome.trace}"
        assert outcome.error.rank == victim
        assert f"rank {victim} is gone" in str(outcome.error)
        assert outcome.at - killed_at < 1.0, f"rank {rank} took {outcome.at - killed_at:.2f} s"
        assert outcome.exitcode == 1


def lose(job: Job, victim: int, word: str = "ready", after: float = 0.05) -> None:
    """Kill a rank a moment after every rank has sent the word, and check how they end."""
    all_say(job, word)
    time.sleep(after)
    at = job.kill(victim)
    check(job.outcomes(), victim, at)


def call_forever(
    comm: Communicator,
    link: Connection,
    collective: str,
    kind: str = "plain",
    count: int = 150_000,
    nonblocking: bool = False,
) -> None:
    x = comm.empty(count, np.float32) if kind == "window" else np.empty(count, np.float32)
    x[:] = 0
    options = {} if kind in ("window", "plain") else {"topology": kind}
    for i in itertools.count():
        if collective == "barrier":
            comm.barrier()
        elif nonblocking:
            comm.iallreduce(x, out=x, **options).wait()
        else:
            call(comm, collective, x, out=x if collective == "allreduce" else None, **options)
        if i == 2:
            link.send("busy")


@pytest.mark.parametrize("nonblocking", [False, True], ids=["blocking", "nonblocking"])
@pytest.mark.parametrize("count", [1, 1 << 20])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_in_the_middle_of_a_call(n: int, count: int, nonblocking: bool) -> None:
    for victim, kind in ((0, "window"), (n - 1, "direct"), (n // 2, "ring")):
        with Job(n, call_forever, "allreduce", kind, count, nonblocking) as job:
            lose(job, victim, "busy", 0.003 * (victim + 1))


@pytest.mark.parametrize("collective", [*REDUCING[1:], *MOVING, "barrier"])
def test_in_every_collective(collective: str) -> None:
    with Job(3, call_forever, collective) as job:
        lose(job, 1, "busy", 0)


def wait_for_a_peer(comm: Communicator, link: Connection, away: int, collective: str, count: int) -> None:
    """All but `away` enter; it stays outside and returns the error of its later call."""
    link.send("ready")
    if comm.rank == away:
        link.recv()
    getattr(comm, collective)(np.ones(count))


@pytest.mark.parametrize("patience", [SPINNING, YIELDING, SLEEPING], ids=["spinning", "yielding", "sleeping"])
@pytest.mark.parametrize("count", [1, 300000])
def test_while_the_others_wait_for_it(patience: dict[str, str], count: int) -> None:
    with Job(2, wait_for_a_peer, 0, "allreduce", count, env=patience) as job:
        lose(job, 0)


@pytest.mark.parametrize("n", [4, 8])
def test_while_it_waits_itself(n: int) -> None:
    """The victim waits in the call, like the survivors, for a late rank, which gets the error too."""
    with Job(n, wait_for_a_peer, n - 1, "allreduce", 100000) as job:
        all_say(job, "ready")
        time.sleep(0.3)
        at = job.kill(1)
        time.sleep(0.1)
        job.link[n - 1].send("go")
        check(job.outcomes(), 1, at)


def hold_messages(comm: Communicator, link: Connection, receive: bool) -> None:
    link.send("ready")
    big = np.zeros(1 << 20)
    if comm.rank == 1:
        time.sleep(60)
    elif receive:
        comm.recv(big, 1)
    else:
        comm.send(big, 1)


@pytest.mark.parametrize("receive", [False, True], ids=["send", "recv"])
def test_in_point_to_point(receive: bool) -> None:
    with Job(2, hold_messages, receive) as job:
        lose(job, 1, after=0.1)


def two_in_a_subset(comm: Communicator, link: Connection) -> str:
    """Ranks 2 and 3 have a separate communicator; the death of 3 is reported with its rank there."""
    part = comm.split(comm.rank // 2)
    link.send("ready")
    if comm.rank == 3:
        time.sleep(60)
    if comm.rank == 2:
        with pytest.raises(PeerLostError) as caught:
            part.barrier()
        assert caught.value.rank == 1
        assert "rank 1 (world rank 3) is gone" in str(caught.value)
        link.send(time.monotonic())
    else:
        for _ in range(100):
            part.barrier()  # not affected
    return "fine"


def test_in_a_communicator_of_some() -> None:
    with Job(4, two_in_a_subset) as job:
        all_say(job, "ready")
        at = job.kill(3)
        assert job.hear(2) - at < 1.0
        outcomes = job.outcomes()
        assert [outcomes[rank].value for rank in range(3)] == ["fine"] * 3, outcomes


def leave_after(comm: Communicator, link: Connection, all_of_them: bool) -> str:
    """Rank 1 frees a communicator because of a loss in another; rank 0 waits for it there."""
    part = comm.dup() if all_of_them else comm.split(comm.rank // 2)
    link.send("ready")
    if comm.rank == 2:
        time.sleep(60)
    if comm.rank == 0:
        with pytest.raises(PeerLostError) as caught:
            part.broadcast(np.ones(3), root=1)
        assert caught.value.rank == (2 if all_of_them else 1)
        return str(caught.value)
    with pytest.raises(PeerLostError):
        comm.broadcast(np.ones(3), root=2)
    part.free()
    return ""


@pytest.mark.parametrize("all_of_them", [True, False], ids=["dup", "split"])
def test_who_leaves_because_of_a_loss_is_not_taken_for_lost(all_of_them: bool) -> None:
    with Job(3, leave_after, all_of_them) as job:
        all_say(job, "ready")
        job.kill(2)
        text = job.outcomes()[0].value
    assert text is not None and "rank 2 is gone" in text and "has freed" not in text, text


def continue_after(comm: Communicator, link: Connection) -> dict[str, Any]:
    """Later calls of every kind raise at once; the survivors shrink, work, lose another, and shrink again."""
    x = comm.empty(5000, np.float64)
    link.send("ready")
    if comm.rank == 1:
        time.sleep(60)
    with pytest.raises(PeerLostError):
        comm.allreduce(x)
    started = time.monotonic()
    for later in (
        lambda: comm.allreduce(np.ones(3)), lambda: comm.barrier(), lambda: comm.iallreduce(np.ones(3)).wait(),
        lambda: comm.broadcast(np.ones(3)), lambda: comm.split(0), lambda: comm.empty(3),
        lambda: comm.send(np.ones(3), (comm.rank + 2) % 4), lambda: comm.recv(np.ones(3), (comm.rank + 2) % 4),
    ):  # fmt: skip
        with pytest.raises(PeerLostError) as caught:
            later()
        assert caught.value.rank == 1
    assert time.monotonic() - started < 0.5
    smaller = comm.shrink()
    assert (smaller.size, smaller.world_ranks) == (3, (0, 2, 3))
    assert smaller.rank == {0: 0, 2: 1, 3: 2}[comm.rank]
    w = place(smaller, np.full(5000, float(comm.rank)), "window")
    for topology in ("direct", "ring", "tree"):
        assert (smaller.allreduce(w, topology=topology) == 5).all()
    assert (smaller.iallreduce(w).result() == 5).all()
    smaller.split(0).barrier()
    link.send("shrunk")
    if comm.rank == 3:
        time.sleep(60)
    with pytest.raises(PeerLostError, match=r"rank 2 \(world rank 3\) is gone"):
        smaller.barrier()
    last = smaller.shrink()
    assert last.allreduce(np.array([comm.rank])).tolist() == [2]
    return {"ranks": last.world_ranks}


def test_shrink_twice() -> None:
    with Job(4, continue_after) as job:
        all_say(job, "ready")
        job.kill(1)
        for rank in (0, 2, 3):
            assert job.hear(rank) == "shrunk", job.outcomes()[rank].trace
        job.kill(3)
        outcomes = job.outcomes()
        for rank in (0, 2):
            assert outcomes[rank].value == {"ranks": (0, 2)}, outcomes[rank].trace


def test_under_the_launcher() -> None:
    """As in use: a script under `pycollective run`, whose rank 1 is killed."""
    script = """
        import os, signal, threading, time
        import numpy as np, pycollective as pc
        comm = pc.init()
        print(os.getpid(), flush=True)
        comm.barrier()
        if comm.rank == 1:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGKILL)).start()
        try:
            while True:
                comm.allreduce(np.ones(1 << 18))
        except pc.PeerLostError as error:
            print("lost", error.rank, flush=True)
    """
    done = launch(4, script, grace=5, env=IMPORTABLE)
    assert done.returncode == 137, done.report()
    for rank in (0, 2, 3):
        assert done[rank].splitlines()[-1] == "lost 1", done.report()
    pids = [int(text.split()[0]) for text in done]
    assert not any(alive(pid) for pid in pids)
    assert not shared_memory(pids)


def test_a_loss_noticed_outside_calls_leaves_those_in_flight() -> None:
    """As the watcher of GPU kernels notices it: a rank that still computes a sum, of which it has all parts, has it."""
    left, reported = threading.Event(), threading.Event()

    def body(comm: Communicator) -> None:
        op, kept = sum_that(lambda: reported.wait(20))
        got = comm.reduce(np.ones(3), op=op, topology="direct")
        if comm.rank == 2:
            left.set()
        if comm.rank == 1:
            assert left.wait(20)
            comm.backend.fail(PeerLostError("the process of rank 2 is gone", 2))
            reported.set()
        if comm.rank == 0:
            assert reported.is_set() and got.tolist() == [3, 3, 3]
        with pytest.raises(PeerLostError, match="rank 2"):
            comm.barrier()
        del kept

    local_world(3).run(body)


def test_a_leader_of_shrink_whose_memory_is_gone_before_it_is_reported() -> None:
    """A process that ends closes its descriptors first: the others begin another round, as if it had been reported."""
    reports = iter([False, False, True])
    team: Any = SimpleNamespace(gone=lambda rank: next(reports))
    assert shrink._attach(team, 0, "memfd:1:999999:0", 4096) is None
    assert next(reports, None) is None
