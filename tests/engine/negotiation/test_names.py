"""Names: one operation per name at a time; a name is free again once its operation has completed."""

from __future__ import annotations

import numpy as np

from engine.operations import SECONDS, every_engine, ones
from pycollective.engine import Engine, Item


@every_engine(3)
def test_a_name_may_change_what_it_means(engine: Engine) -> None:
    """What was agreed for a name must not outlive a change of shape, type, operator or collective on all ranks."""
    n = engine.size
    for _ in range(3):
        for count in (5, 8, 0, 70_000):
            assert engine.run([ones("x", count)])[0].tolist() == [n] * count
        for dtype in ("int8", "float32", "uint64"):
            got = engine.run([Item("allreduce", "x", np.full(9, 2, dtype), op="prod")])[0]
            assert got.dtype == dtype
            assert got.tolist() == [2**n] * 9
        for root in range(n):
            got = engine.run([Item("broadcast", "x", np.full(4, engine.rank), root=root)])[0]
            assert got.tolist() == [root] * 4
        got = engine.run([Item("allgather", "x", np.full((1, 2), engine.rank))])[0]
        assert got[:, 0].tolist() == list(range(n))
        engine.run([Item("barrier", "x")])


@every_engine(2)
def test_names_of_every_kind(engine: Engine) -> None:
    names = ["", " ", "a" * 4000, "größe/重み", "a.b/c:d", "join", "barrier", 'quote"\\', "\n", "x\0y"]
    works = {name: engine.submit([ones(name)])[0] for name in (names if engine.rank else names[::-1])}
    for name, work in works.items():
        assert work.name == name
        assert work.wait(SECONDS).tolist() == [2] * 3


@every_engine(2)
def test_many_in_flight(engine: Engine) -> None:
    names = [f"tensor {i}" for i in range(3000)]
    works = [engine.submit([ones(name, 1)])[0] for name in (names if engine.rank else names[::-1])]
    assert sum(work.wait(SECONDS)[0] for work in works) == 3000 * engine.size
