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

import pytest
from processes import Job, alive, all_say
from speed import until

from engine.operations import SECONDS, ones
from pycollective import Communicator, PeerLostError
from pycollective.comm.host.team import HostTeam
from pycollective.engine import Engine


def waits_and_loses(comm: Communicator, link: Connection, victim: int, how: str) -> int:
    """All submit except the victim, which is killed; each rank that waits, or submits later, gets an error."""
    engine = Engine(comm)
    for turn in range(3):
        assert engine.run([ones(f"fine {turn}")])[0][0] == engine.size
    calls: list[str] = []
    works = engine.submit([ones("a", 1000), ones("b", 100_000)]) if how == "away" and engine.rank != victim else []
    for work in works:
        work.when_done(lambda: calls.append("called"))
    link.send("ready")
    if how == "away" and engine.rank == victim:
        time.sleep(60)
    if how == "busy":  # the victim dies at any point during its work
        with pytest.raises(PeerLostError) as caught:
            for turn in range(1_000_000):
                engine.submit([ones(f"{turn % 5}", 1000)])[0].wait(SECONDS)
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
    until(lambda: len(calls) == len(works))
    engine.close()
    return left(comm)


def left(comm: Communicator) -> int:
    """How many ranks continue."""
    engine = Engine(comm.shrink())
    total = int(engine.run([ones("a", 1)])[0][0])
    engine.close()
    return total


@pytest.mark.parametrize("how", ["away", "busy"])
@pytest.mark.parametrize(("n", "victim"), [(2, 0), (2, 1), (3, 0), (4, 2)])
def test_a_killed_rank(n: int, victim: int, how: str) -> None:
    with Job(n, waits_and_loses, victim, how) as job:
        all_say(job, "ready")
        if how == "busy":
            time.sleep(0.05)
        job.kill(victim)
        outcomes = job.outcomes()
        for rank in set(range(n)) - {victim}:
            assert outcomes[rank].value == n - 1, outcomes[rank].trace


def dies_holding_the_lock(comm: Communicator, link: Connection, others: str) -> str:
    """Rank 1 takes the lock of the board, and is killed; the others wait, or come later."""
    engine, lock = board_of(comm)
    assert engine.run([ones("fine")])[0][0] == engine.size
    works = engine.submit([ones("a")]) if others == "wait" and engine.rank != 1 else []
    link.send("ready")
    if others == "come" or engine.rank == 1:
        link.recv()
    if engine.rank == 1:
        assert ctypes.CDLL(None).pthread_mutex_lock(ctypes.byref(lock)) == 0
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerLostError, match="rank 1 is gone") as caught:
        (works or engine.submit([ones("a")]))[0].wait(SECONDS)
    assert caught.value.rank == 1
    with pytest.raises(PeerLostError):
        engine.join()
    engine.close()
    assert left(comm) == comm.size - 1
    return str(caught.value)


def board_of(comm: Communicator) -> tuple[Engine, ctypes.c_uint32]:
    """An engine, and its board's lock, which begins with the thread that holds it and flags of the kernel's."""
    boards = []
    share = HostTeam.share

    def noted(team: HostTeam, nbytes: int) -> Any:
        boards.append(share(team, nbytes))
        return boards[-1]

    HostTeam.share = noted  # type: ignore[method-assign]
    engine = Engine(comm)
    return engine, ctypes.c_uint32.from_address(address_of(boards[0]))  # the board's first member


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
        all_say(job, "ready")
        job.link[1].send("die")
        if others == "come":
            until(lambda: not alive(job.pid[1]))
            for rank in (0, 2):
                job.link[rank].send("come")
        outcomes = job.outcomes()
    for rank in set(range(n)) - {1}:
        assert outcomes[rank].error is None, outcomes[rank].trace
        if others == "come":
            assert "while it wrote to the engine's board" in outcomes[rank].value
