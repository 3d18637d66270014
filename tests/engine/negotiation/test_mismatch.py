"""Ranks that submit different operations under one name: an error on each names both; the engine keeps working."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from calls import on_each_rank

from engine.operations import SECONDS, every_engine, ones
from pycollective import Communicator, CommunicatorError, MismatchError
from pycollective.engine import Engine, Item


def allreduce(shape: Any = 4, dtype: Any = "float32", **more: Any) -> Item:
    return Item("allreduce", "odd", np.ones(shape, dtype), **more)


def moved(collective: str, shape: Any, dtype: str = "float32", **more: Any) -> Item:
    return Item(collective, "odd", np.ones(shape, dtype), **more)


CASES: dict[str, tuple[Callable[[], Item], Callable[[], Item], list[str]]] = {
    "shape": (lambda: allreduce((2, 3)), lambda: allreduce((3, 2)), [r"2, ?3", r"3, ?2"]),
    "count": (lambda: allreduce(4), lambda: allreduce(5), ["4", "5"]),
    "dimensions": (lambda: allreduce((6,)), lambda: allreduce((6, 1)), ["6", r"6, ?1"]),
    "dtype": (lambda: allreduce(), lambda: allreduce(dtype="float64"), ["float32", "float64"]),
    "width": (lambda: allreduce(4, "int32"), lambda: allreduce(4, "float32"), ["int32", "float32"]),
    "axes": (lambda: allreduce((3, 3)), lambda: allreduce((3, 3), axes=(1, 0)), [r"axes=\(1, ?0"]),
    "op": (lambda: allreduce(op="max"), lambda: allreduce(op="min"), ["max", "min"]),
    "prescale": (lambda: allreduce(prescale=0.5), lambda: allreduce(), [r"0\.5"]),
    "postscale": (lambda: allreduce(), lambda: allreduce(postscale=0.25), [r"0\.25"]),
    "root": (lambda: moved("broadcast", 4, root=0), lambda: moved("broadcast", 4, root=1), ["root"]),
    "broadcast's shape": (lambda: moved("broadcast", 4, root=0), lambda: moved("broadcast", 9, root=0), ["4", "9"]),
    "collective": (lambda: allreduce(4), lambda: moved("allgather", 4), ["allreduce", "allgather"]),
    "barrier": (lambda: Item("barrier", "odd"), lambda: allreduce(4), ["barrier", "allreduce"]),
    "allgather's columns": (lambda: moved("allgather", (1, 3)), lambda: moved("allgather", (2, 4)), ["3", "4"]),
    "allgather's dtype": (lambda: moved("allgather", 3), lambda: moved("allgather", 3, "int8"), ["float32", "int8"]),
    "alltoall's columns": (lambda: moved("alltoall", (12, 3)), lambda: moved("alltoall", (12, 2)), ["3", "2"]),
    "reducescatter's op": (
        lambda: moved("reducescatter", 12, op="sum"), lambda: moved("reducescatter", 12, op="max"), ["sum", "max"],
    ),
    "reducescatter's shape": (lambda: moved("reducescatter", 12), lambda: moved("reducescatter", 13), ["12", "13"]),
}  # fmt: skip


def goes_on(engine: Engine, name: str) -> None:
    got = engine.submit([Item("allreduce", name, np.full(1000, engine.rank + 1))])[0].wait(SECONDS)
    assert got.tolist() == [engine.size * (engine.size + 1) // 2] * 1000


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("hosts", [(0, 0), (0, 0, 0), (0, 1)], ids=str)
@every_engine()
def test_every_rank_gets_both_descriptions(engine: Engine, hosts: tuple[int, ...], case: str) -> None:
    """The last rank differs; earlier and later operations are not affected, nor is the name."""
    n = len(hosts)
    usual, odd, words = CASES[case]
    before = engine.submit([ones("before")])[0]
    bad = engine.submit([odd() if engine.rank == n - 1 else usual()])[0]
    after = engine.submit([ones("after")])[0]
    with pytest.raises(MismatchError) as caught:
        bad.wait(SECONDS)
    assert bad.test()
    for work in (before, after):
        assert work.wait(SECONDS).tolist() == [n] * 3
    goes_on(engine, "odd")
    with pytest.raises(MismatchError):  # waiting again raises again
        bad.wait(SECONDS)
    for word in ("odd", *words, rf"ranks? .*{n - 1}"):
        assert re.search(word, str(caught.value)), (word, str(caught.value))


@every_engine(2)
def test_grouped_and_not(engine: Engine) -> None:
    """Ranks that put the same tensors into different groups."""
    items = [ones(name) for name in "abc"]
    works = engine.submit(items) if engine.rank else [engine.submit([one])[0] for one in items]
    for work in works:
        with pytest.raises(MismatchError, match="group"):
            work.wait(SECONDS)
    goes_on(engine, "a")


@on_each_rank(3)
def test_a_part_of_the_ranks_is_named_by_the_worlds_numbers_too(comm: Communicator) -> None:
    """For mismatches, pending operations, and lost ranks."""
    part = comm.group([2, 1])
    if part is None:
        return
    engine = Engine(part)
    with pytest.raises(MismatchError, match=r"rank 0 \(world rank 2\) submits"):
        engine.submit([allreduce(3 + engine.rank)])[0].wait(SECONDS)
    if engine.rank == 1:
        work = engine.submit([allreduce()])[0]
        assert "for rank 0 (world rank 2)" in engine.report()
        part.barrier()
        with pytest.raises(CommunicatorError, match=r"rank 0 \(world rank 2\) has shut"):
            work.wait(SECONDS)
    else:
        part.barrier()
    engine.close()
