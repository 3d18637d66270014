"""Missing ranks: TimeoutError names them and the call; survivors of a timeout; limits of waits."""

from __future__ import annotations

import builtins
import signal
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from calls import on_each_rank, place, sum_that
from processes import Job, all_say

from pycollective import Communicator, CommunicatorError, Error, PeerLostError, TimeoutError, local_world


@pytest.mark.parametrize("nonblocking", [False, True])
@pytest.mark.parametrize(("n", "missing"), [(2, [0]), (3, [1]), (5, [0, 3]), (8, [7])])
@on_each_rank()
def test_the_missing_ranks_and_the_call_are_named(
    comm: Communicator, n: int, missing: list[int], nonblocking: bool
) -> None:
    comm.barrier()
    if comm.rank in missing:
        time.sleep(0.6)  # too late
    started = time.monotonic()
    with pytest.raises(TimeoutError) as caught:
        if nonblocking:
            comm.iallreduce(np.ones(77), timeout=0.3).wait()
        else:
            comm.allreduce(np.ones(77), timeout=0.3)
    assert comm.rank in missing or 0.25 < time.monotonic() - started < 2
    assert isinstance(caught.value, builtins.TimeoutError) and isinstance(caught.value, Error)
    assert "allreduce(count=77, dtype=float64, op=sum" in str(caught.value)
    assert "within 0.3 s by " + ", ".join(f"rank {rank}" for rank in missing) in str(caught.value)
    with pytest.raises(TimeoutError):
        comm.barrier()
    assert time.monotonic() - started < 2


def call_repeatedly(comm: Communicator, link: Connection) -> tuple[str, int, float]:
    comm.barrier()
    link.send("ready")
    with pytest.raises(TimeoutError) as caught:
        while True:
            comm.allreduce(np.ones(1 << 18), timeout=0.5)
    fresh = comm.shrink(timeout=5)
    return str(caught.value), fresh.size, fresh.allreduce(1)


def test_a_rank_that_is_stopped_in_a_call_is_named_and_all_can_start_afresh() -> None:
    """It is alive, so it is not lost: the ranks waiting for it name it, and it gets the error when it continues."""
    with Job(3, call_repeatedly) as job:
        all_say(job, "ready")
        time.sleep(0.02)
        job.kill(1, signal.SIGSTOP)
        time.sleep(1.2)
        job.kill(1, signal.SIGCONT)
        for text, size, total in job.results():
            assert "within 0.5 s" in text
            assert "rank 1 entered it but made no progress" in text or "by rank 1" in text
            assert (size, total) == (3, 3)


def test_what_was_read_from_a_rank_that_has_given_up_is_no_result() -> None:
    """The fault is of a later call, but rank 1 does not wait indefinitely: then its program may write to the array."""
    given_up = threading.Event()
    ranks: dict[int, Communicator] = {}

    def act() -> None:
        if not given_up.is_set():
            ranks[1].backend.fail(PeerLostError("the process of rank 1 is gone", 1))
            given_up.wait(20)

    def body(comm: Communicator) -> None:
        ranks[comm.rank] = comm
        op, kept = sum_that(act)
        x = place(comm, np.ones(4000), "window")  # large enough to be read where it is
        comm.barrier()
        with pytest.raises(PeerLostError):
            comm.reduce(x, op=op, topology="direct")
        x[:] = -1
        given_up.set()
        del kept

    local_world(2).run(body)


@on_each_rank(3)
def test_a_call_completes_although_a_later_one_is_given_up(comm: Communicator, event: threading.Event) -> None:
    """Rank 2 waits for rank 1, which still adds, while rank 0 is in the next call and waits no longer."""
    op, kept = sum_that(lambda: comm.rank == 2 or event.wait(20))
    comm.barrier()
    assert comm.scan(np.ones(1), op=op, topology="ring") == comm.rank + 1
    with pytest.raises(TimeoutError):
        comm.barrier(timeout=0.5 if comm.rank == 0 else 20)
    event.set()
    del kept


@on_each_rank(3)
def test_a_survivor_that_does_not_shrink_is_left_out(comm: Communicator) -> None:
    if comm.rank == 2:
        time.sleep(1.5)
        with pytest.raises(CommunicatorError, match="without rank 2"):
            comm.shrink(timeout=0.5)
        return
    with pytest.raises(TimeoutError):
        comm.barrier(timeout=0.2)
    fresh = comm.shrink(timeout=0.5)
    assert fresh.size == fresh.allreduce(1) == 2


@on_each_rank(2)
def test_waiting_for_a_handle_has_a_separate_limit(comm: Communicator) -> None:
    """Its expiry harms neither the call nor the communicator."""
    if comm.rank == 0:
        time.sleep(0.4)
        comm.allreduce(np.ones(3))
        return
    handle = comm.iallreduce(np.ones(3))
    for limit in (0, 0.05, 0.1):
        started = time.monotonic()
        with pytest.raises(TimeoutError, match="can be waited for again"):
            handle.wait(limit)
        assert limit <= time.monotonic() - started + 0.001
    assert not handle.test()
    assert handle.result(20).tolist() == [2, 2, 2]
    assert handle.test()


@pytest.mark.parametrize("wrong", [-1, float("nan"), "soon", -0.1])
@on_each_rank(2)
def test_invalid_deadlines(comm: Communicator, wrong: Any) -> None:
    handle = comm.iallreduce(np.ones(2))
    for attempt in (lambda: comm.allreduce(np.ones(2), timeout=wrong), lambda: comm.barrier(timeout=wrong),
                    lambda: comm.iallreduce(np.ones(2), timeout=wrong).wait(), lambda: comm.shrink(wrong),
                    lambda: comm.recv(np.ones(2), 1 - comm.rank, timeout=wrong),
                    lambda: handle.wait(float("nan"))):  # fmt: skip
        with pytest.raises((ValueError, TypeError), match="timeout must be a number"):
            attempt()
    handle.wait(20)
    comm.barrier(timeout=1e9)
    comm.barrier(timeout=float("inf"))


@on_each_rank(2)
def test_the_deadline_of_a_v_form_holds_for_its_counts_too(comm: Communicator) -> None:
    for call in (
        lambda on: on.alltoallv(np.ones(2), [1, 1], timeout=0.05, name="mine"),
        lambda on: on.allgatherv(np.ones(2), timeout=0.05, name="mine"),
    ):
        own = comm.dup()
        if comm.rank == 0:
            with pytest.raises(TimeoutError, match=r"within 0\.05 s by rank 1"):
                call(own)
        comm.barrier()


@pytest.mark.parametrize("how", ["keeps", "drops"])
def test_a_rank_thread_that_ends_is_lost_in_all_its_communicators(how: str) -> None:
    """It may keep the other communicator or drop it: no rank waits for it until the deadline."""
    kept: list[Communicator] = []

    def body(comm: Communicator) -> None:
        other = comm.split(0)
        if comm.rank == 0 and how == "keeps":
            kept.append(other)
        if comm.rank == 1:
            with pytest.raises(PeerLostError, match="rank 0"):
                other.allreduce(np.ones(3), timeout=20)

    local_world(2).run(body)


def test_a_rank_thread_that_fails_is_lost_to_the_others() -> None:
    errors: list[str] = []

    def body(comm: Communicator) -> None:
        other = comm.split(0)
        if comm.rank == 1:
            raise KeyError("mine")
        for each in comm, other:
            with pytest.raises(PeerLostError) as caught:
                each.allreduce(np.ones(3), timeout=20)
            assert caught.value.rank == 1
            errors.append(str(caught.value))
        started = time.monotonic()
        assert comm.shrink().size == 2
        assert time.monotonic() - started < 5, "shrink waits for a rank that has failed"

    with pytest.raises(KeyError, match="mine") as caught:
        local_world(3).run(body)
    assert caught.value.failed_rank == 1  # type: ignore[attr-defined]
    assert len(errors) == 4
    for text in errors:
        assert "rank 1 has failed: KeyError: 'mine'" in text
