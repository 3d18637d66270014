"""The end of an engine: closing releases everything, fails pending waits, and leaves the communicator usable."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from calls import on_each_rank

from engine.operations import SECONDS, ones
from pycollective import CommunicatorError, local_world
from pycollective.engine import Engine, Item


@on_each_rank(3)
def test_after_close(comm: Any) -> None:
    engine = Engine(comm)
    work = engine.submit([ones("a")])[0]
    assert work.wait(SECONDS).tolist() == [3] * 3
    engine.close()
    x = np.ones(3)
    held = weakref.ref(x)
    with pytest.raises(CommunicatorError):
        engine.submit([Item("allreduce", "b", x, x)])
    del x
    gc.collect()
    assert held() is None
    with pytest.raises(CommunicatorError):
        engine.join()
    engine.close()  # a second call does nothing
    assert work.wait(0).tolist() == [3] * 3
    second = Engine(comm)  # the communicator is still usable
    assert second.submit([ones("a")])[0].wait(SECONDS).tolist() == [3] * 3
    second.close()
    assert comm.allreduce(np.ones(1)).tolist() == [3]


@on_each_rank(2)
def test_closing_ends_pending_operations(comm: Any) -> None:
    """Each operation has a result or reports that the engine was closed; no wait hangs."""
    engine = Engine(comm)
    works: list[Any] = []
    with contextlib.suppress(CommunicatorError):  # the other one may have closed already
        for i in range(30):
            works += engine.submit([ones(f"{i}", 1000)])
        if comm.rank == 0:
            works += engine.submit([ones("nobody else has this")])
    engine.close()
    for work in works:
        try:
            assert work.wait(SECONDS).sum() == 2000
        except CommunicatorError as error:
            assert "shut" in str(error)
        assert work.test()
    with pytest.raises(CommunicatorError):
        engine.submit([ones("later")])


@on_each_rank(2)
def test_closing_while_another_thread_waits(comm: Any) -> None:
    engine = Engine(comm)
    work = engine.submit([ones(f"only rank {comm.rank}")])[0]
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(work.wait, SECONDS)
        comm.barrier()
        engine.close()
        with pytest.raises(CommunicatorError):
            waiter.result()


def test_a_closed_engine_is_released() -> None:
    """And with it its part of the shared memory: there is no reference cycle invisible to the garbage collector."""

    def rank(comm: Any) -> Any:
        engine = Engine(comm)
        engine.run([ones("a"), Item("broadcast", "b", np.ones(3), root=0)])
        engine.close()
        return weakref.ref(engine)

    engines = local_world(2).run(rank)
    gc.collect()
    assert [engine() for engine in engines] == [None, None]


def test_engines_come_and_go() -> None:
    """As frameworks are initialized and shut down again; nothing remains, not even a thread."""
    before = threading.active_count()

    def rank(comm: Any) -> None:
        for turn in range(15):
            engine = Engine(comm)
            assert (engine.rank, engine.size) == (comm.rank, 2)
            assert engine.submit([ones("a", turn)])[0].wait(SECONDS).tolist() == [2] * turn
            engine.close()

    local_world(2).run(rank)
    assert threading.active_count() <= before
