"""Nonblocking collectives: every form, several in flight, mixed with blocking calls, and handles that are dropped."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import signal
import threading
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from calls import MOVING, REDUCING, call, expected, has, on_each_rank, place, sum_that
from processes import run
from reference import TOPOLOGIES, Array, contributions
from speed import until

import pycollective
from launch import launch
from meeting import on_threads
from pycollective import Communicator, Handle, PeerLostError, local_world

COUNTS = (5, 60_000)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("n", [1, 2, 4])
@on_each_rank()
def test_every_form_gives_the_result_of_the_blocking_one(comm: Communicator, n: int, topology: str) -> None:
    collectives = [name for name in (*REDUCING, *MOVING) if has(topology, name)]
    data = {count: contributions("int16", "sum", n, count) for count in COUNTS}
    started: list[tuple[str, Array | None, Handle]] = []
    for count in COUNTS:
        for collective in collectives:
            x = data[count][comm.rank]
            handle = call(comm, f"i{collective}", x, n - 1, topology=topology)
            started.append((collective, expected(collective, data[count], n - 1, comm.rank), handle))
    barrier = comm.ibarrier(topology=topology)
    for collective, right, handle in reversed(started):
        handle.wait(20)
        assert handle.test()
        got = handle.result()
        assert got is None if right is None else got.tobytes() == right.tobytes(), collective
    barrier.wait(20)
    assert barrier.result() is None


@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="its shadow memory is larger than any limit")
def test_what_the_system_refuses_has_not_begun() -> None:
    """A call that raised would otherwise run later, on this rank alone."""
    launch(1, _refused, launcher="alone", check=True)


def _refused() -> None:
    import resource
    from pathlib import Path

    import numpy as np

    import pycollective

    comm, x, much = pycollective.init(), np.ones(1), np.ones(1 << 24)
    comm.allreduce(x)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    calls = {
        OSError: lambda: comm.iallreduce(x, out=x, prescale=2.0),  # no room for a thread's stack
        MemoryError: lambda: comm.allreduce(much[::2], out=much[: 1 << 23]),  # nor for a copy of 64 MiB
    }
    for error, refused in calls.items():
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), hard))
        try:
            refused()
        except error as raised:
            print(raised)
        else:
            raise AssertionError(f"no {error.__name__}")
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    comm.allreduce(np.ones(1))
    assert x[0] == 1
    assert comm.iallreduce(x, out=x, prescale=2.0).result(20)[0] == 2


def many_in_flight(comm: Communicator, link: Connection | None) -> None:
    """Hundreds of calls started before any wait, with blocking ones between; also with out and windows."""
    window, handles = place(comm, np.ones(8_000, np.float32), "window"), []
    for turn in range(200):
        x = np.full(turn * 40 + 1, comm.rank + turn, np.float64)
        handles.append(comm.iallreduce(x, out=x, topology=TOPOLOGIES[turn % 6]))
        if turn % 50 == 7:
            assert comm.broadcast(np.array([turn + comm.rank]), turn % comm.size)[0] == turn + turn % comm.size
        if turn % 60 == 11:
            comm.barrier()
    shared = comm.iallreduce(window, out=window)
    for turn, handle in enumerate(handles):
        total = handle.result(20)
        assert total.shape == (turn * 40 + 1,)
        assert (total == comm.size * turn + sum(range(comm.size))).all()
    assert (shared.result(20) == comm.size).all()


@pytest.mark.parametrize("n", [2, 3])
def test_many_in_flight(n: int) -> None:
    local_world(n).run(lambda comm: many_in_flight(comm, None))
    run(n, many_in_flight)


def several_communicators(comm: Communicator, link: Connection | None) -> None:
    """Ranks start the calls of different communicators in different orders: none may block another."""
    comms = [comm.dup() for _ in range(4)]
    part = comm.split(comm.rank % 2)
    for turn in range(20):
        order = [(turn + comm.rank + i) % 4 for i in range(4)]
        handles = {i: comms[i].iallreduce(np.full(2_000, i + turn)) for i in order}
        mine = part.iallgather(np.array([comm.rank]))
        assert comm.allreduce(np.array([1]))[0] == comm.size
        for i in reversed(order):
            assert (handles[i].result(20) == comm.size * (i + turn)).all()
        assert mine.result(20).tolist() == list(range(comm.rank % 2, comm.size, 2))


def test_several_communicators_in_different_orders() -> None:
    local_world(4).run(lambda comm: several_communicators(comm, None))
    run(4, several_communicators)


@on_each_rank(3)
def test_dropped_handles_complete(comm: Communicator) -> None:
    """Without a wait, their arrays live until they have completed, and the results arrive."""
    kept = [np.zeros(30_000) for _ in range(20)]
    for turn, out in enumerate(kept):
        comm.iallreduce(np.full(30_000, float(turn)), out=out)
    gc.collect()
    comm.barrier()  # queued behind them
    for turn, out in enumerate(kept):
        assert (out == 3 * turn).all()


@on_each_rank(2)
def test_a_wait_runs_the_call(comm: Communicator) -> None:
    """In the waiting thread, if that comes before the background thread looks; else it runs there."""
    threads: set[int] = set()
    op, kept = sum_that(lambda: threads.add(threading.get_ident()))
    for _ in range(50):
        assert comm.iallreduce(np.ones(3), op=op).result(20).tolist() == [2, 2, 2]
    assert threading.get_ident() in threads
    del kept


@on_each_rank(2)
def test_a_call_goes_on_after_a_wait_that_was_too_short(comm: Communicator, event: threading.Event) -> None:
    """The waiting thread has begun it; the progress thread completes it, and calls behind it, without any wait."""
    if comm.rank == 1:
        event.wait(20)
    x = np.full(100_000, 1.0)
    first, second = comm.iallreduce(x), comm.iallreduce(2 * x)
    if comm.rank == 0:
        for handle in (first, second):
            with pytest.raises(pycollective.TimeoutError):
                handle.wait(0.01)
        event.set()
    until(second.test)
    assert (second.result(0) == 4).all() and (first.result(0) == 2).all()
    assert comm.allreduce(np.ones(1))[0] == 2


@on_each_rank(2)
def test_threads_wait_for_different_handles(comm: Communicator) -> None:
    """The thread that runs a communicator's calls may leave when its own is done: another one continues."""
    for turn in range(50):
        handles = [comm.iallreduce(np.full(2_000, turn + i)) for i in range(3)]
        order = (2, 0, 1)
        results = on_threads([partial(handles[i].result, 20) for i in order])
        assert [result[0] for result in results] == [2 * (turn + i) for i in order]


def idle(comm: Communicator, link: Connection | None) -> None:
    """Threads that have been used and are not needed any more use less than 20 ms of a second."""
    from pycollective.engine import Engine, Item

    engine = Engine(comm)
    for turn in range(20):
        comm.iallreduce(np.ones(3)).wait()
        engine.submit([Item("allreduce", f"{turn}", np.ones(3))])[0].wait()
    time.sleep(1.3)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.01
    assert comm.iallreduce(np.ones(3)).result(20)[0] == comm.size  # they wake up again
    assert engine.submit([Item("allreduce", "last", np.ones(3))])[0].wait(20)[0] == comm.size
    handle, work = comm.iallreduce(np.ones(3)), engine.submit([Item("allreduce", "unawaited", np.ones(3))])[0]
    until(lambda: handle.test() and work.test())
    engine.close()


def test_idle_threads_rest() -> None:
    run(2, idle)


def blocked_signals() -> dict[str, str]:
    """The masks of blocked signals, in hexadecimal, of the core's threads."""
    status = ""
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a rank's, which ends meanwhile
            status += thread.joinpath("status").read_text()
    return dict(re.findall(r"Name:\t(pc-\w+)\n.*?\nSigBlk:\t(\w+)\n", status, re.DOTALL))


def masked(comm: Communicator, link: Connection | None) -> None:
    """Threads of the core block all signals: one may have ended the process that a sigwait() is waiting for."""
    comm.iallreduce(np.ones(3)).wait()
    across = local_world(2, hosts=(0, 1))  # with heartbeats
    across.run(lambda comm: comm.allreduce(np.ones(3)))
    until(lambda: blocked_signals().keys() == {"pc-progress", "pc-heartbeats"})  # threads name themselves
    for mask in blocked_signals().values():
        left = {number for number in signal.valid_signals() if not int(mask, 16) >> number - 1 & 1}
        assert left == {signal.SIGKILL, signal.SIGSTOP}


def test_threads_of_the_core_take_no_signals() -> None:
    run(2, masked)


@on_each_rank(2)
def test_handles_are_awaited_while_other_tasks_run(comm: Communicator, event: threading.Event) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        other = asyncio.create_task(count())
        if comm.rank == 0:
            while turns < 100:  # the other rank waits meanwhile
                await asyncio.sleep(0)
        total, gathered = await asyncio.gather(comm.iallreduce(np.ones(3)), comm.iallgather(np.ones(1)))
        assert (total == 2).all() and gathered.tolist() == [1, 1]
        assert (await comm.iallreduce(np.ones(100_000))).sum() == 200_000
        if comm.rank == 1:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(comm.ibroadcast(np.ones(3), 0, timeout=0.3), 0.05)
            with pytest.raises(pycollective.TimeoutError, match=r"not entered within 0\.3 s by rank 0"):
                await comm.iallreduce(np.ones(3))
        other.cancel()

    try:
        asyncio.run(main())
    finally:
        if comm.rank == 1:
            event.set()
    assert event.wait(60)
    assert turns > 10


@on_each_rank(2)
def test_several_threads_may_wait_for_one_handle(comm: Communicator) -> None:
    if comm.rank == 0:
        time.sleep(0.1)
    handle = comm.iallreduce(np.ones(10))
    assert on_threads([lambda: handle.result(20)[0]] * 4) == [2.0] * 4


def test_the_error_of_a_call_comes_from_its_handle_every_time() -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            raise OSError("gone")
        handle = comm.iallreduce(np.ones(10))
        behind = comm.iallreduce(np.ones(10))
        for waiting in (handle.wait, handle.result, handle.wait, behind.wait):
            with pytest.raises(PeerLostError):
                waiting()
        assert handle.test()
        with pytest.raises(PeerLostError):
            comm.iallreduce(np.ones(3))

    with pytest.raises(OSError, match="gone"):
        local_world(2).run(body)


@on_each_rank(3)
def test_a_blocking_call_keeps_its_order(comm: Communicator) -> None:
    """Started after a nonblocking call, it runs after it, on ranks that wait and ranks that do not."""
    for turn in range(100):
        x = np.full(50, turn)
        handle = comm.iallreduce(x)
        if (turn + comm.rank) % 3 == 0:
            handle.wait(20)
        assert comm.allreduce(np.full(3, -turn), op="min")[0] == -turn
        assert handle.result(20)[0] == 3 * turn
