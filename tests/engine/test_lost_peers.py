"""A rank that dies: every wait on the others names it, and the remaining ranks can continue."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import Job, alive

from engine.operations import SECONDS
from pycollective import Communicator, PeerLostError
from pycollective.engine import Engine, Item


def ones(name: str, count: int = 1000) -> Item:
    return Item("allreduce", name, np.ones(count))


def waits_and_loses(comm: Communicator, link: Connection, victim: int, how: str) -> int:
    """All submit except the victim, which is killed; each rank that waits, or submits later, gets an error."""
    engine = Engine(comm)
    for turn in range(3):
        assert engine.submit([ones(f"fine {turn}")])[0].wait(SECONDS)[0] == engine.size
    if engine.rank == victim:
        if how == "busy":  # dies at any point during its work
            link.send("ready")
            for turn in range(1_000_000):
                engine.submit([ones(f"{turn % 5}")])[0].wait(SECONDS)
        link.send("ready")
        time.sleep(60)
    works = [] if how == "busy" else engine.submit([ones("a"), ones("b", 100_000)])
    link.send("ready")
    if how == "busy":
        with pytest.raises(PeerLostError) as caught:
            for turn in range(1_000_000):
                engine.submit([ones(f"{turn % 5}")])[0].wait(SECONDS)
        assert caught.value.rank == victim
    for work in works:
        with pytest.raises(PeerLostError) as caught:
            work.wait(SECONDS)
        assert caught.value.rank == victim
        assert work.test()
    with pytest.raises(PeerLostError):
        engine.submit([ones("later")])[0].wait(SECONDS)
    with pytest.raises(PeerLostError):
        engine.join()
    engine.close()
    smaller = comm.shrink()
    second = Engine(smaller)
    total: int = second.submit([Item("allreduce", "a", np.array([1]))])[0].wait(SECONDS)[0]
    second.close()
    return total


@pytest.mark.parametrize("how", ["away", "busy"])
@pytest.mark.parametrize(("n", "victim"), [(2, 0), (2, 1), (3, 0), (4, 2)])
def test_a_killed_rank(n: int, victim: int, how: str) -> None:
    with Job(n, waits_and_loses, victim, how) as job:
        for rank in range(n):
            assert job.hear(rank) == "ready", job.outcomes()[rank].trace
        if how == "busy":
            time.sleep(0.05)
        job.kill(victim)
        outcomes = job.outcomes()
        for rank in set(range(n)) - {victim}:
            assert outcomes[rank].value == n - 1, outcomes[rank].trace


def callbacks_too(comm: Communicator, link: Connection) -> list[str]:
    """A rank that registered a callback instead of waiting is called."""
    engine = Engine(comm)
    calls: list[str] = []
    if engine.rank == 0:
        link.send("ready")
        time.sleep(60)
    work: Any = engine.submit([ones("a")])[0]
    work.when_done(lambda: calls.append("called"))
    link.send("ready")
    with pytest.raises(PeerLostError):
        work.wait(SECONDS)
    end = time.monotonic() + SECONDS
    while not calls and time.monotonic() < end:
        time.sleep(0.01)
    engine.close()
    return calls


def test_callbacks() -> None:
    with Job(2, callbacks_too) as job:
        assert [job.hear(0), job.hear(1)] == ["ready"] * 2
        job.kill(0)
        outcome = job.outcomes()[1]
        assert outcome.value == ["called"], outcome.trace


def leaves_without_a_word(comm: Communicator, link: Connection) -> str:
    """Rank 1 returns while the others wait for it: this counts as lost too."""
    engine = Engine(comm)
    if engine.rank == 1:
        return "left"
    with pytest.raises((PeerLostError, RuntimeError)):
        engine.submit([ones("a")])[0].wait(SECONDS)
    return "raised"


def test_a_rank_that_ends() -> None:
    with Job(3, leaves_without_a_word) as job:
        assert [job.outcomes()[rank].value for rank in range(3)] == ["raised", "left", "raised"]


def dies_holding_the_lock(comm: Communicator, link: Connection, others: str) -> str:
    """Rank 1 takes the lock of the board, its first member, and is killed; the others wait, or come later."""
    boards = []
    share = Engine._share_board

    def noted(engine: Engine, slots: int) -> Any:
        boards.append(share(engine, slots))
        return boards[-1]

    Engine._share_board = noted  # type: ignore[method-assign]
    engine = Engine(comm)
    assert engine.submit([ones("fine")])[0].wait(SECONDS)[0] == engine.size
    works = engine.submit([ones("a")]) if others == "wait" and engine.rank != 1 else []
    link.send("ready")
    if others == "come" or engine.rank == 1:
        link.recv()
    if engine.rank == 1:
        assert ctypes.CDLL(None).pthread_mutex_lock(ctypes.c_void_p(address_of(boards[0]))) == 0
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerLostError, match="rank 1 is gone") as caught:
        (works or engine.submit([ones("a")]))[0].wait(SECONDS)
    assert caught.value.rank == 1
    with pytest.raises(PeerLostError):
        engine.join()
    engine.close()
    smaller = comm.shrink()
    second = Engine(smaller)
    assert second.submit([ones("a")])[0].wait(SECONDS)[0] == comm.size - 1
    second.close()
    return str(caught.value)


def address_of(segment: Any) -> int:
    """Where shared memory is mapped: found by its size."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if "pycollective" in line and 0 <= end - begin - segment.bytes < mmap.PAGESIZE:
            return begin
    raise AssertionError("the board is not mapped")


@pytest.mark.parametrize(("n", "others"), [(2, "wait"), (3, "wait"), (3, "come")])
def test_a_rank_that_dies_holding_the_lock(n: int, others: str) -> None:
    with Job(n, dies_holding_the_lock, others) as job:
        for rank in range(n):
            assert job.hear(rank) == "ready", job.outcomes()[rank].trace
        job.link[1].send("die")
        if others == "come":
            while alive(job.pid[1]):
                time.sleep(0.01)
            for rank in (0, 2):
                job.link[rank].send("come")
        outcomes = job.outcomes()
    for rank in set(range(n)) - {1}:
        assert outcomes[rank].error is None, outcomes[rank].trace
        if others == "come":
            assert "while it wrote to the engine's board" in outcomes[rank].value
