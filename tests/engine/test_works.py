"""What submit() returns: waiting, polling, callbacks, and lifetimes."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from speed import until

from engine.operations import SECONDS, every_engine, on_engines, ones
from pycollective import TimeoutError
from pycollective.engine import Engine, Item, Settings


@every_engine(2)
def test_submit_never_blocks_and_wait_does(engine: Engine, event: threading.Event) -> None:
    """Rank 1 comes only after rank 0 has seen its operation incomplete, and a wait for it time out."""
    if engine.rank == 1:
        assert event.wait(SECONDS)
    works = engine.submit([ones("a"), ones("b")])
    if engine.rank == 0:
        assert not any(work.test() for work in works)
        for _ in range(2):
            with pytest.raises(TimeoutError, match="a"):
                works[0].wait(0.01)
        event.set()
    for work in works:
        assert work.wait(SECONDS).tolist() == [2] * 3
        assert work.test()
        assert work.wait() is work.wait(0)  # a completed operation stays completed


@every_engine(3)
def test_a_call_of_anything(engine: Engine) -> None:
    """Functions on the engine's communicator, in an order that all ranks share."""
    names = ["x", "y", "z"]
    order = names if engine.rank else names[::-1]
    calls = {name: Item("call", name, run=lambda comm: comm.reduce(np.full(3, comm.rank), 1)) for name in names}
    works = {name: engine.submit([calls[name]])[0] for name in order}
    for name in names:
        got = works[name].wait(SECONDS)
        assert (got is None) == (engine.rank != 1)
        assert got is None or got.tolist() == [3, 3, 3]
    if engine.rank == 2:  # a local failure, without a collective in it
        with pytest.raises(ZeroDivisionError):
            engine.run([Item("call", "bad", run=lambda comm: 1 // 0)])
    else:
        assert engine.run([Item("call", "bad", run=lambda comm: "fine")]) == ["fine"]
    assert engine.run([ones("after")])[0].tolist() == [3] * 3


@every_engine(2)
def test_callbacks_are_called_once_each(engine: Engine) -> None:
    calls: list[str] = []
    work = engine.submit([ones("a")])[0]
    work.when_done(lambda: calls.append("first"))
    work.when_done(lambda: calls.append("second"))
    work.wait(SECONDS)
    work.when_done(lambda: calls.append("late"))
    engine.run([Item("barrier", "end")])
    until(lambda: len(calls) >= 3)
    assert sorted(calls) == ["first", "late", "second"]


@every_engine(2)
def test_the_result_is_there_when_a_callback_runs(engine: Engine) -> None:
    seen: list[Any] = []
    through = threading.Event()

    def look() -> None:
        seen.append((work.test(), work.wait(0).sum()))
        through.set()

    for turn in range(50):
        work = engine.submit([ones(f"{turn % 7}", 1000)])[0]
        work.when_done(look)
        assert through.wait(SECONDS)
        through.clear()
    assert seen == [(True, 1000 * engine.size)] * 50


@every_engine(3)
def test_a_callback_may_submit(engine: Engine) -> None:
    """As a framework chains operations; another thread waits for the second."""
    second: list[Any] = []
    submitted = threading.Event()

    def go_on() -> None:
        second.extend(engine.submit([ones("second", 7)]))
        submitted.set()

    engine.submit([ones("first")])[0].when_done(go_on)
    assert submitted.wait(SECONDS)
    assert second[0].wait(SECONDS).tolist() == [engine.size] * 7


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@every_engine(2)
def test_a_callback_that_raises_affects_nothing_else(engine: Engine) -> None:
    def fail() -> None:
        raise ValueError("a callback's own trouble")

    work = engine.submit([ones("a")])[0]
    with contextlib.suppress(ValueError):  # it has completed already: the caller's thread calls
        work.when_done(fail)
    assert work.wait(SECONDS).tolist() == [engine.size] * 3
    assert engine.run([ones("b")])[0].tolist() == [engine.size] * 3


@every_engine(3)
def test_the_engine_keeps_its_references(engine: Engine) -> None:
    """Works, items and arrays are dropped at once; the engine holds what it needs, and releases it afterwards."""
    results = []
    for turn in range(100):
        out = np.zeros(5000)
        results.append(out)
        engine.submit([Item("allreduce", f"{turn}", np.full(5000, float(turn)), out=out)])
    gc.collect()
    engine.submit([Item("barrier", "end")])[0].wait(SECONDS)
    last = engine.submit([ones("last")])[0]
    last.wait(SECONDS)
    for turn, out in enumerate(results):
        assert (out == turn * engine.size).all(), turn


@every_engine(2)
def test_completed_operations_are_released(engine: Engine) -> None:
    x = np.ones(1000)
    watched = weakref.ref(x)
    work = engine.submit([Item("allreduce", "a", x)])[0]
    del x
    work.wait(SECONDS)
    del work
    # the engine may hold its last batch until the next
    for turn in range(3):
        engine.submit([ones(f"{turn}")])[0].wait(SECONDS)
    gc.collect()
    assert watched() is None


@every_engine(2)
def test_two_threads_wait_for_the_same(engine: Engine) -> None:
    with ThreadPoolExecutor(1) as pool:
        for _ in range(20):
            work = engine.submit([ones("a", 20_000)])[0]
            other = pool.submit(work.wait, SECONDS)
            mine = work.wait(SECONDS)
            assert other.result() is mine


@pytest.mark.torch
def test_a_group_whose_slots_others_have_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core remembers a group with the places of its operations."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr("pycollective.engine.engine.LEAST_SLOTS", 4)

    def body(engine: Engine) -> None:
        for _ in range(3):
            xs = [torch.ones(2), torch.ones(3)]
            engine.reduce_group(lambda: "group", xs, "sum", 1.0, 1.0, None)
            assert [x.tolist() for x in xs] == [[2, 2], [2, 2, 2]]
            for name in "abcdefgh":
                assert engine.run([ones(name)])[0].tolist() == [2] * 3

    on_engines(2, body, settings=Settings(cache_capacity=1))
