"""Names: one operation per name at a time; a name is free again once its operation has completed."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from engine.operations import SECONDS, on_engines
from pycollective.engine import Engine, Item


def ones(name: str, count: int = 3) -> Item:
    return Item("allreduce", name, np.ones(count))


def total(work: Any) -> float:
    return float(work.wait(SECONDS).sum())


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_name_in_flight_is_refused(n: int) -> None:
    """On rank 0 only: the others never see the second one, and the first is not affected."""
    go = threading.Event()

    def body(engine: Engine) -> float:
        if engine.rank:
            assert go.wait(SECONDS)
        else:
            if n > 1:  # alone, an operation may have completed before the next line
                first = engine.submit([ones("grad")])[0]
                with pytest.raises(ValueError, match="grad"):
                    engine.submit([ones("grad")])
                go.set()
                return total(first)
            with pytest.raises(ValueError, match="grad"):
                engine.submit([ones("grad"), ones("grad")])
        return total(engine.submit([ones("grad")])[0])

    assert on_engines(n, body) == [3 * n] * n


def test_nothing_of_a_refused_group_is_submitted() -> None:
    go = threading.Event()

    def body(engine: Engine) -> list[float]:
        if engine.rank == 0:
            held = engine.submit([ones("held")])
            with pytest.raises(ValueError, match="held"):
                engine.submit([ones("before"), ones("held"), ones("after")])
            go.set()
        else:
            assert go.wait(SECONDS)
            held = engine.submit([ones("held")])
        rest = [engine.submit([ones(name)])[0] for name in ("after", "before")]
        return [total(work) for work in (*held, *rest)]

    assert on_engines(2, body) == [[6, 6, 6]] * 2


def test_twice_in_a_group_is_refused() -> None:
    def body(engine: Engine) -> float:
        with pytest.raises(ValueError, match="twin"):
            engine.submit([ones("twin"), ones("other"), ones("twin")])
        return total(engine.submit([ones("twin")])[0])

    assert on_engines(2, body) == [6, 6]


def test_a_name_is_free_again_after_its_operation() -> None:
    def body(engine: Engine) -> list[float]:
        return [total(engine.submit([ones("again")])[0]) for _ in range(300)]

    assert on_engines(3, body) == [[9.0] * 300] * 3


def test_a_name_may_change_what_it_means() -> None:
    """What was agreed for a name must not outlive a change of shape, type, operator or collective on all ranks."""

    def body(engine: Engine) -> None:
        n = engine.size
        for _ in range(3):
            for count in (5, 8, 0, 70_000):
                got = engine.submit([ones("x", count)])[0].wait(SECONDS)
                assert got.tolist() == [n] * count
            for dtype in ("int8", "float32", "uint64"):
                got = engine.submit([Item("allreduce", "x", np.full(9, 2, dtype), op="prod")])[0].wait(SECONDS)
                assert got.dtype == dtype
                assert got.tolist() == [2**n] * 9
            for root in range(n):
                got = engine.submit([Item("broadcast", "x", np.full(4, engine.rank), root=root)])[0].wait(SECONDS)
                assert got.tolist() == [root] * 4
            got = engine.submit([Item("allgather", "x", np.full((1, 2), engine.rank))])[0].wait(SECONDS)
            assert got[:, 0].tolist() == list(range(n))
            engine.submit([Item("barrier", "x")])[0].wait(SECONDS)

    on_engines(3, body)


def test_names_of_every_kind() -> None:
    names = ["", " ", "a" * 4000, "größe/重み", "a.b/c:d", "join", "barrier", 'quote"\\', "\n", "x\0y"]

    def body(engine: Engine) -> list[float]:
        order = names if engine.rank else names[::-1]
        works = {name: engine.submit([ones(name)])[0] for name in order}
        assert all(work.name == name for name, work in works.items())
        return [total(works[name]) for name in names]

    assert on_engines(2, body) == [[6.0] * len(names)] * 2


def test_many_names_over_time() -> None:
    """More than any cache holds: old entries are evicted."""

    def body(engine: Engine) -> None:
        for start in range(0, 6000, 500):
            names = [f"tensor {i}" for i in range(start, start + 500)]
            works = [engine.submit([ones(name, 1)])[0] for name in (names if engine.rank else names[::-1])]
            assert sum(total(work) for work in works) == 500 * engine.size

    on_engines(2, body)


def test_many_in_flight() -> None:
    def body(engine: Engine) -> None:
        names = [f"tensor {i}" for i in range(3000)]
        works = [engine.submit([ones(name, 1)])[0] for name in (names if engine.rank else names[::-1])]
        assert sum(total(work) for work in works) == 3000 * engine.size

    on_engines(2, body)
