"""A collective from within another one of the same thread: an error, without a deadlock or any harm."""

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
from processes import run
from speed import until

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


def outcome_of(attempt: Callable[[], object]) -> BaseException | None:
    try:
        attempt()
    except BaseException as error:
        return error
    return None


def during(comm: Communicator, call: Callable[[], Any], body: Callable[[], None]) -> None:
    """Runs `body` in a signal handler while rank 0 waits in `call`, in which the others arrive late."""
    outcomes: list[BaseException | None] = []

    if comm.rank == 0:
        signal.signal(signal.SIGUSR2, lambda *_: outcomes.append(outcome_of(body)))
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR2))
        timer.start()
        call()
        timer.join()
        assert outcomes, "the handler did not run while the call waited"
        if outcomes[0] is not None:
            raise outcomes[0]
    else:
        time.sleep(0.6)
        call()


def in_a_signal_handler(comm: Communicator, link: Connection) -> None:
    """Every call is refused, and the communicator works as before."""
    refused = 0

    def all_of_them() -> None:
        nonlocal refused
        for name, call in CALLS.items():
            if name in ("wait", "result"):
                continue  # they start calls, which all ranks must make: see below
            with pytest.raises(NestedCallError, match="communicator 'world' from within another one of the same") as e:
                call(comm)
            assert isinstance(e.value, CommunicatorError)
            refused += 1

    during(comm, comm.barrier, all_of_them)
    during(comm, lambda: comm.allreduce(np.ones(1 << 16), topology="ring"), all_of_them)
    assert comm.rank or refused == 2 * (len(CALLS) - 2)
    assert comm.allreduce(X).tolist() == [comm.size] * 3
    part = comm.dup()
    window = part.empty(1 << 12)
    window[:] = 1
    assert part.allreduce(window)[0] == comm.size
    comm.empty(5)


def messages(comm: Communicator, link: Connection) -> None:
    """A channel is a separate communicator: messages may be nested in a call, but not in a message."""
    here, there = np.zeros(1), np.zeros(1)
    if comm.rank == 0:
        with pytest.raises(NestedCallError):
            during(comm, lambda: comm.recv(here, 1), lambda: comm.recv(there, 1))
        during(comm, comm.barrier, lambda: comm.send(X, 1))
    else:
        time.sleep(0.6)
        comm.send(np.full(1, 7.0), 0)
        got = np.zeros(3)
        comm.recv(got, 0)
        assert got.tolist() == [1] * 3
        comm.barrier()
    assert here.tolist() == [7.0 * (comm.rank == 0)]


def nonblocking(comm: Communicator, link: Connection) -> None:
    """Starting a call is allowed: it runs after the waiting one. Waiting for it is not."""
    started: list[Any] = []

    def start() -> None:
        started.append(comm.iallreduce(X))
        for wait in (started[0].wait, started[0].result, lambda: comm.broadcast(X), comm.free):
            with pytest.raises(NestedCallError):
                wait()

    during(comm, comm.barrier, start)
    if comm.rank:
        started.append(comm.iallreduce(X))
    assert started[0].result(20).tolist() == [comm.size] * 3
    comm.barrier()


def in_finalizers(comm: Communicator, link: Connection) -> None:
    """The arrays of a nonblocking call are released by the thread that executed it, which waits for no rank."""
    outcomes: list[BaseException | None] = []
    x = np.ones(1000)
    weakref.finalize(x, lambda: outcomes.append(outcome_of(lambda: comm.allreduce(X))))
    handles = [comm.iallreduce(x, out=np.empty(1000))]
    handles += [comm.iallreduce(X) for _ in range(3)]
    del x
    for handle in handles:
        handle.wait(20)
    del handles, handle
    gc.collect()
    until(lambda: outcomes)
    assert [type(error) for error in outcomes] == [NestedCallError], outcomes
    comm.barrier()


def frees_in_finalizers(comm: Communicator, link: Connection) -> None:
    """The background thread cannot wait for calls in flight, which only it runs."""
    part, outcomes = comm.dup(), []
    if comm.rank == 0:
        x = np.ones(1000)
        weakref.finalize(x, lambda: outcomes.append(outcome_of(part.free)))
        first, second = comm.iallreduce(x, out=np.empty(1000)), part.iallreduce(X)
        del x, first
        until(lambda: outcomes)
        assert isinstance(outcomes[0], NestedCallError), outcomes
        comm.barrier()
        assert second.result(20).tolist() == [2] * 3
    else:
        comm.allreduce(np.ones(1000))
        comm.barrier()
        part.allreduce(X)
    part.free()


def in_a_handler_of_the_engine(comm: Communicator, link: Connection) -> None:
    """The engine's callbacks, and signal handlers, may run on a thread that drives it."""
    from pycollective.engine import Engine, Item

    engine = Engine(comm)
    outcomes: list[BaseException | None] = []
    later: list[Any] = []
    attempts: list[Callable[[], Any]] = [
        lambda: engine.run([Item("allreduce", "nested", X)]),
        engine.join,
        engine.close,
        lambda: later.extend(engine.submit([Item("allreduce", "later", X)])),
        lambda: later[0].wait(20),
    ]

    def all_of_them() -> None:
        outcomes.extend(map(outcome_of, attempts))

    for drives in (True, False):  # this thread, or the engine's
        outcomes.clear()
        later.clear()
        work = engine.submit([Item("allreduce", "first", np.ones(5))])[0] if comm.rank == 0 else None
        if work is not None:
            work.when_done(all_of_them)
        else:
            time.sleep(0.3)
            work = engine.submit([Item("allreduce", "first", np.ones(5))])[0]
        if drives or comm.rank:
            assert work.wait(20).tolist() == [2] * 5
        if comm.rank == 0:
            until(lambda: len(outcomes) == len(attempts))
            kinds = [type(error) for error in outcomes]
            assert kinds == [NestedCallError] * 3 + [type(None), NestedCallError], outcomes
        else:
            later += engine.submit([Item("allreduce", "later", X)])
        assert later[0].wait(20).tolist() == [2] * 3
    assert engine.run([Item("barrier", "end")]) == [None]
    engine.close()


def signals_in_the_engine(comm: Communicator, link: Connection) -> None:
    """A wait for an operation of the engine is not inside a call: a handler may make calls."""
    from pycollective.engine import Engine, Item

    engine = Engine(comm)
    items = [Item("allreduce", "slow", X)]

    def handler() -> None:
        assert engine.run([Item("allreduce", "in the handler", X)])[0].tolist() == [2] * 3

    if comm.rank:
        threading.Timer(0.3, engine.run, ([Item("allreduce", "in the handler", X)],)).start()
    during(comm, lambda: engine.run(items), handler)
    engine.run([Item("barrier", "end")])
    engine.close()


IN_THE_ENGINE = (in_a_handler_of_the_engine, signals_in_the_engine)


@pytest.mark.parametrize(
    "body", [in_a_signal_handler, messages, nonblocking, in_finalizers, frees_in_finalizers, *IN_THE_ENGINE]
)
def test_a_call_from_within_another_one(body: Callable[[Communicator, Connection], None]) -> None:
    run(2, body)
