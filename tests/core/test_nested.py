"""A collective from within another one of the same thread: an error, and neither a deadlock nor any harm."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from core.processes import run
from pycollective import Communicator, CommunicatorError, NestedCallError

X = np.ones(3)
CALLS: dict[str, Callable[[Communicator], Any]] = {
    "allreduce": lambda comm: comm.allreduce(X),
    "broadcast": lambda comm: comm.broadcast(X),
    "barrier": lambda comm: comm.barrier(),
    "alltoallv": lambda comm: comm.alltoallv(np.ones(comm.size), [1] * comm.size),
    "wait": lambda comm: comm.iallreduce(X).wait(),
    "result": lambda comm: comm.ibarrier().result(),
    "split": lambda comm: comm.split(0),
    "dup": lambda comm: comm.dup(),
    "group": lambda comm: comm.group([0]),
    "empty": lambda comm: comm.empty(3),
    "free": lambda comm: comm.free(),
}


def during(comm: Communicator, link: Connection, call: Callable[[], Any], body: Callable[[], None]) -> None:
    """Runs `body` in a signal handler while rank 0 waits in `call`, in which the others come late."""
    came: list[BaseException | None] = []

    def handler(*_: object) -> None:
        try:
            body()
            came.append(None)
        except BaseException as error:
            came.append(error)

    if comm.rank == 0:
        signal.signal(signal.SIGUSR2, handler)
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR2))
        timer.start()
        call()
        timer.join()
        assert came, "the handler did not run while the call waited"
        if came[0] is not None:
            raise came[0]
    else:
        time.sleep(0.6)
        call()


def in_a_signal_handler(comm: Communicator, link: Connection) -> None:
    """Every call is refused, and afterwards everything works as before."""
    refused = 0

    def all_of_them() -> None:
        nonlocal refused
        for name, call in CALLS.items():
            if name in ("wait", "result"):
                continue  # they start something, which all ranks must: see below
            with pytest.raises(NestedCallError, match="communicator 'world' from within another one of the same") as e:
                call(comm)
            assert isinstance(e.value, CommunicatorError)
            refused += 1

    during(comm, link, comm.barrier, all_of_them)
    during(comm, link, lambda: comm.allreduce(np.ones(1 << 16), topology="ring"), all_of_them)
    assert comm.rank or refused == 2 * (len(CALLS) - 2)
    assert comm.allreduce(X).tolist() == [comm.size] * 3
    part = comm.dup()
    window = part.empty(1 << 12)
    window[:] = 1
    assert part.allreduce(window)[0] == comm.size
    comm.empty(5)


def messages(comm: Communicator, link: Connection) -> None:
    """A channel is a communicator of its own: other messages may come within a call, but not within a message."""
    here, there = np.zeros(1), np.zeros(1)
    if comm.rank == 0:
        with pytest.raises(NestedCallError):
            during(comm, link, lambda: comm.recv(here, 1), lambda: comm.recv(there, 1))
        during(comm, link, comm.barrier, lambda: comm.send(X, 1))
    else:
        time.sleep(0.6)
        comm.send(np.full(1, 7.0), 0)
        got = np.zeros(3)
        comm.recv(got, 0)
        assert got.tolist() == [1] * 3
        comm.barrier()
    assert here.tolist() == [7.0 * (comm.rank == 0)]


def nonblocking(comm: Communicator, link: Connection) -> None:
    """To start a call is no harm: it comes after the one that waits. To wait for it there is."""
    started: list[Any] = []

    def start() -> None:
        started.append(comm.iallreduce(X))
        for wait in (started[0].wait, started[0].result, lambda: comm.broadcast(X), comm.free):
            with pytest.raises(NestedCallError):
                wait()

    during(comm, link, comm.barrier, start)
    if comm.rank:
        started.append(comm.iallreduce(X))
    assert started[0].result(20).tolist() == [comm.size] * 3
    comm.barrier()


def in_finalizers(comm: Communicator, link: Connection) -> None:
    """The arrays of a nonblocking call are let go by the thread that has carried it out, which waits for nobody."""
    came: list[BaseException | None] = []

    def last() -> None:
        try:
            comm.allreduce(X)
            came.append(None)
        except BaseException as error:
            came.append(error)

    x = np.ones(1000)
    weakref.finalize(x, last)
    handles = [comm.iallreduce(x, out=np.empty(1000))]
    handles += [comm.iallreduce(X) for _ in range(3)]
    del x
    for handle in handles:
        handle.wait(20)
    end = time.monotonic() + 20
    del handles, handle
    gc.collect()
    while not came and time.monotonic() < end:
        time.sleep(0.01)
    assert len(came) == 1
    assert isinstance(came[0], NestedCallError), came
    comm.barrier()


@pytest.mark.parametrize("body", [in_a_signal_handler, messages, nonblocking, in_finalizers])
def test_a_call_from_within_another_one(body: Callable[[Communicator, Connection], None]) -> None:
    run(2, body)


def in_a_handler_of_the_engine(comm: Communicator, link: Connection) -> None:
    """The engine's callbacks run on a thread that drives it, and so may signal handlers."""
    from pycollective.engine import Engine, Item

    engine = Engine(comm)
    came: list[BaseException | None] = []

    def call(attempt: Callable[[], Any]) -> None:
        try:
            attempt()
            came.append(None)
        except BaseException as error:
            came.append(error)

    later: list[Any] = []
    attempts = {
        "run": lambda: engine.run([Item("allreduce", "nested", X)]),
        "join": engine.join,
        "close": engine.close,
        "submit": lambda: later.extend(engine.submit([Item("allreduce", "later", X)])),
        "wait": lambda: later[0].wait(20),
    }

    def all_of_them() -> None:
        for attempt in attempts.values():
            call(attempt)

    for drives in (True, False):  # this thread, or the engine's
        came.clear()
        later.clear()
        work = engine.submit([Item("allreduce", "first", np.ones(5))])[0] if comm.rank == 0 else None
        if work is not None:
            work.when_done(all_of_them)
        else:
            time.sleep(0.3)
            work = engine.submit([Item("allreduce", "first", np.ones(5))])[0]
        if drives or comm.rank:
            assert work.wait(20).tolist() == [2] * 5
        end = time.monotonic() + 20
        while comm.rank == 0 and len(came) < len(attempts) and time.monotonic() < end:
            time.sleep(0.01)
        if comm.rank == 0:
            kinds = [type(error) for error in came]
            assert kinds == [NestedCallError] * 3 + [type(None), NestedCallError], came
        else:
            later += engine.submit([Item("allreduce", "later", X)])
        assert later[0].wait(20).tolist() == [2] * 3
    assert engine.run([Item("barrier", "end")]) == [None]
    engine.close()


def test_callbacks_of_the_engine() -> None:
    run(2, in_a_handler_of_the_engine)


def signals_in_the_engine(comm: Communicator, link: Connection) -> None:
    """A wait for an operation of the engine is not inside of a call: a handler may call."""
    from pycollective.engine import Engine, Item

    engine = Engine(comm)
    items = [Item("allreduce", "slow", X)]

    def handler() -> None:
        assert engine.run([Item("allreduce", "in the handler", X)])[0].tolist() == [2] * 3

    if comm.rank:
        threading.Timer(0.3, engine.run, ([Item("allreduce", "in the handler", X)],)).start()
    during(comm, link, lambda: engine.run(items), handler)
    engine.run([Item("barrier", "end")])
    engine.close()


def test_a_signal_handler_while_an_operation_is_waited_for() -> None:
    run(2, signals_in_the_engine)
