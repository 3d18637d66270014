"""Ranks that submit different operations under one name: an error on each names both; the engine keeps working."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from processes import run

from engine.operations import SECONDS, on_engines
from pycollective import Communicator, CommunicatorError, MismatchError, local_world
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
def test_every_rank_gets_both_descriptions(hosts: tuple[int, ...], case: str) -> None:
    """The last rank differs; earlier and later operations are not affected, nor is the name."""
    n = len(hosts)
    usual, odd, words = CASES[case]

    def body(engine: Engine) -> str:
        before = engine.submit([Item("allreduce", "before", np.ones(5))])[0]
        bad = engine.submit([odd() if engine.rank == n - 1 else usual()])[0]
        after = engine.submit([Item("allreduce", "after", np.ones(5))])[0]
        with pytest.raises(MismatchError) as caught:
            bad.wait(SECONDS)
        assert bad.test()
        for work in (before, after):
            assert work.wait(SECONDS).tolist() == [n] * 5
        goes_on(engine, "odd")
        with pytest.raises(MismatchError):  # waiting again raises again
            bad.wait(SECONDS)
        return str(caught.value)

    for text in on_engines(n, body, hosts):
        assert "odd" in text
        for word in words:
            assert re.search(word, text), (word, text)
        assert re.search(rf"ranks? .*{n - 1}", text), text


def test_repeatedly() -> None:
    """A mismatch is not remembered: the same name is right, wrong and right again."""

    def body(engine: Engine) -> None:
        for turn in range(20):
            count = 3 + (turn % 2) * engine.rank
            work = engine.submit([allreduce(count)])[0]
            if turn % 2:
                with pytest.raises(MismatchError):
                    work.wait(SECONDS)
            else:
                assert work.wait(SECONDS).tolist() == [engine.size] * count

    on_engines(3, body)


def test_within_a_group_and_a_crowd() -> None:
    """Some of a hundred tensors are wrong; all others have correct results."""

    def body(engine: Engine) -> None:
        items = [Item("allreduce", f"t{i}", np.ones(10 + (i % 9 == 4) * engine.rank)) for i in range(100)]
        works = [engine.submit([one])[0] for one in (items if engine.rank else items[::-1])]
        if engine.rank == 0:
            works.reverse()
        for i, work in enumerate(works):
            if i % 9 == 4:
                with pytest.raises(MismatchError, match=f"t{i}"):
                    work.wait(SECONDS)
            else:
                assert work.wait(SECONDS).tolist() == [engine.size] * 10

    on_engines(3, body)


def test_grouped_and_not() -> None:
    """Ranks that put the same tensors into different groups."""

    def body(engine: Engine) -> None:
        items = [Item("allreduce", name, np.ones(3)) for name in "abc"]
        if engine.rank:
            works = engine.submit(items)
        else:
            works = [engine.submit([one])[0] for one in items]
        for work in works:
            with pytest.raises(MismatchError, match="group"):
                work.wait(SECONDS)
        goes_on(engine, "a")

    on_engines(2, body)


def in_processes(comm: Communicator, link: object) -> str:
    engine = Engine(comm)
    with pytest.raises(MismatchError) as caught:
        engine.submit([allreduce(3 + (engine.rank == 1))])[0].wait(SECONDS)
    goes_on(engine, "next")
    engine.close()
    return str(caught.value)


def test_processes() -> None:
    texts = run(3, in_processes)
    assert all("odd" in text and "3" in text and "4" in text for text in texts), texts


def test_a_part_of_the_ranks_is_named_by_the_worlds_numbers_too() -> None:
    """For mismatches, pending operations, and lost ranks."""

    def body(comm: Communicator) -> None:
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

    local_world(3).run(body)


REFUSED: dict[str, Callable[[], Item]] = {
    "no array": lambda: Item("allreduce", "bad", object()),
    "no output": lambda: Item("allreduce", "bad", np.ones(2), [0.0, 0.0]),
    "not contiguous": lambda: Item("allreduce", "bad", np.ones((4, 4)).T[:, :2]),
    "an unknown operator": lambda: allreduce(op="mean"),
    "bits of floats": lambda: allreduce(op="bxor"),
    "an unknown collective": lambda: moved("alreduce", 4),
    "a root out of range": lambda: moved("broadcast", 4, root=7),
    "an output of another shape": lambda: allreduce(4, out=np.zeros(5, "float32")),
    "an output of another type": lambda: allreduce(4, out=np.zeros(4, "float64")),
    "too many splits": lambda: moved("alltoall", 4, splits=[1, 1, 2]),
    "splits that do not sum up": lambda: moved("alltoall", 4, splits=[1, 1]),
    "splits below zero": lambda: moved("alltoall", 4, splits=[5, -1]),
    "text": lambda: Item("allreduce", "bad", np.array(["a"])),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_on_one_rank_is_refused_there(case: str) -> None:
    """An exception from submit, before anything is sent; the name stays free, and the engine works."""

    def body(engine: Engine) -> None:
        if engine.rank == 0:
            with pytest.raises((TypeError, ValueError, RuntimeError, BufferError)):
                engine.submit([Item("allreduce", "fine", np.ones(2)), REFUSED[case]()])
        assert engine.submit([Item("allreduce", "bad", np.ones(2))])[0].wait(SECONDS).tolist() == [2, 2]
        assert engine.submit([Item("allreduce", "fine", np.ones(2))])[0].wait(SECONDS).tolist() == [2, 2]

    on_engines(2, body)


def test_a_read_only_output_is_refused() -> None:
    frozen = np.zeros(3)
    frozen.flags.writeable = False

    def body(engine: Engine) -> None:
        with pytest.raises((TypeError, ValueError, RuntimeError, BufferError)):
            engine.submit([Item("allreduce", "bad", np.ones(3), frozen)])
        assert engine.submit([Item("allreduce", "read", frozen)])[0].wait(SECONDS).tolist() == [0, 0, 0]

    on_engines(1, body)
