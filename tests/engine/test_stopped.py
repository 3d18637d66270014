"""A rank that is stopped (SIGSTOP, a debugger) while it holds the lock of the engine's board, and resumes later."""

from __future__ import annotations

import random
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from processes import Job, all_say

from engine.operations import ones
from engine.test_lost_peers import board_of
from pycollective import Communicator, TimeoutError
from pycollective.engine import Engine

DEADLINE = 1.5
THREAD = 0x3FFFFFFF  # FUTEX_TID_MASK
MANY = 4000  # pending operations: listing them holds the lock for a large part of the time


def holds_the_lock(comm: Communicator, link: Connection) -> str:
    """Rank 1 is stopped with the lock; the others raise and continue without it; it raises when resumed."""
    engine, lock = board_of(comm)
    assert engine.run([ones("fine")])[0].sum() == 3 * comm.size
    link.send("ready")
    if comm.rank == 1:
        works = engine.submit([ones(f"mine {i}") for i in range(MANY)])
        while not link.poll():
            engine.report()
        for attempt in (works[0].wait, lambda: engine.submit([ones("later")]), engine.join, engine.comm.barrier):
            with pytest.raises(TimeoutError, match="rank 1 has held the lock of the engine's board"):
                attempt()
        engine.close()
        return "raised"
    while link.recv() == "locked?":
        link.send(lock.value & THREAD)
    started = time.monotonic()
    assert "rank 1 holds the lock" in engine.report()
    with pytest.raises(TimeoutError, match=r"rank 1 has held the lock of the engine's board for 1\.5 s"):
        engine.submit([ones("a")])
    assert time.monotonic() - started > DEADLINE
    with pytest.raises(TimeoutError):
        engine.join()
    engine.close()
    smaller = comm.shrink(3.0)  # on a busy machine, the others may be late
    second = Engine(smaller)
    link.send("without it")
    for turn in range(200 if link.recv() == "go on" else 0):
        assert second.run([ones(f"{turn % 3}")])[0].tolist() == [2] * 3
    second.close()
    return "continued"


def test_a_rank_that_is_stopped_with_the_lock() -> None:
    with Job(3, holds_the_lock, env={"PYCOLLECTIVE_TIMEOUT": str(DEADLINE)}) as job:
        all_say(job, "ready")
        stop_with_lock(job)
        for rank in (0, 2):
            job.link[rank].send("it is stopped")
        for rank in (0, 2):
            assert (heard := job.hear(rank, 20)) == "without it", heard
        job.kill(1, signal.SIGCONT)
        for rank in range(3):
            job.link[rank].send("go on")
        assert job.results() == ["continued", "raised", "continued"]


def stop_with_lock(job: Job) -> None:
    """Stops rank 1 repeatedly, until it is stopped at such a moment."""
    choice = random.Random(0)
    for _ in range(500):
        time.sleep(choice.random() * 0.01)
        job.kill(1, signal.SIGSTOP)
        time.sleep(0.005)
        job.link[0].send("locked?")
        if Path(f"/proc/{job.pid[1]}/task/{job.hear(0)}").exists():  # not another rank's
            return
        job.kill(1, signal.SIGCONT)
    raise AssertionError("it never had the lock")


def waits_with_a_limit(comm: Communicator, link: Connection) -> None:
    """A wait for an operation lasts until its own limit, or until Ctrl-C."""
    engine, lock = board_of(comm)
    works = engine.submit([ones(f"mine {i}") for i in range(MANY)]) if comm.rank else engine.submit([ones("a")])
    link.send("ready")
    if comm.rank == 1:
        while not link.poll():
            engine.report()
        return
    while link.recv() == "locked?":
        link.send(lock.value & THREAD)
    started = time.monotonic()
    with pytest.raises(TimeoutError, match="can be waited for again"):
        works[0].wait(0.3)
    assert time.monotonic() - started < 5
    for attempt in (works[0].wait, lambda: engine.submit([ones("b")])):
        link.send("interrupt me")
        with pytest.raises(KeyboardInterrupt):
            attempt()
    link.send("done")
    works[0].wait()  # rank 1 ends without submitting what this waits for


def test_limits_and_interrupts_hold_while_a_rank_is_stopped_with_the_lock() -> None:
    with Job(2, waits_with_a_limit) as job:
        all_say(job, "ready")
        stop_with_lock(job)
        job.link[0].send("it is stopped")
        for _ in range(2):
            assert job.hear(0, 10) == "interrupt me"
            time.sleep(0.3)
            job.kill(0, signal.SIGINT)
        assert job.hear(0, 10) == "done"
        job.kill(1, signal.SIGCONT)
        job.link[1].send("go on")
        assert "rank 1 " in str(job.outcomes()[0].error)
