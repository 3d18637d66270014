"""Operations of the engine as data: what each rank submits, and the expected results, computed with NumPy."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bodies import Body, run_by
from calls import share
from fuzz.sequences import Step, values, whole
from reference import DTYPES, OPERATORS, REALS, Array, numpy_type, takes
from speed import deadline

from pycollective import Communicator, local_world
from pycollective.engine import Engine, Item

REDUCING = ("allreduce", "reducescatter")
COLLECTIVES = (*REDUCING, "broadcast", "allgather", "alltoall", "barrier")
SHAPES = ((), (0,), (1,), (7,), (3, 0, 2), (2, 3), (64,), (5, 4, 3), (1000,), (33, 31), (40_000,))
OUTPUTS = ("new", "same", "other")
FLOATS = ("float16", "bfloat16", "float32", "float64")
SECONDS = deadline(25.0)
"""Seconds after which an operation counts as hanging."""


@dataclass(frozen=True)
class Operation:
    """One named operation; `root` is taken modulo the number of ranks, `number` seeds its values."""

    collective: str
    number: int
    dtype: str = "float32"
    op: str = "sum"
    shape: tuple[int, ...] = (4,)
    root: int = 0
    window: bool = False
    out: str = "new"  # "same": in place, if the result fits into x; "other": an array of the caller
    scale: float = 1.0  # before; its square after
    priority: int = 0

    @property
    def name(self) -> str:
        return f"{self.collective}.{self.number}"

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1


def random_operation(choice: random.Random, number: int) -> Operation:
    """One operation of each kind."""
    collective = choice.choice([*COLLECTIVES, "allreduce", "allreduce"])
    dtype = choice.choice(DTYPES)
    op = choice.choice([op for op in OPERATORS if takes(op, dtype)]) if collective in REDUCING else "sum"
    shape = choice.choice(SHAPES)
    if collective in ("allgather", "alltoall", "reducescatter"):
        shape = shape or (2,)  # they need rows
    scale = choice.choice([1.0, 1.0, 0.5, 2.0]) if collective in REDUCING and dtype in FLOATS and op == "sum" else 1.0
    return Operation(
        collective, number, dtype, op, shape, choice.randrange(8), choice.random() < 0.3,
        choice.choice(OUTPUTS), scale, choice.randint(-2, 2),
    )  # fmt: skip


def splits(one: Operation, size: int, rank: int) -> list[int]:
    """How many rows a rank sends to each other in an alltoall."""
    return [(one.rows + 3 * rank + 5 * to + one.number) % 7 for to in range(size)]


def rows_of(one: Operation, size: int, rank: int) -> int:
    """Rows of the rank's input; ranks differ where allowed."""
    if one.collective == "allgather":
        return (one.rows * (rank + 1) + one.number) % 41
    if one.collective == "alltoall":
        return sum(splits(one, size, rank))
    return one.rows


def contributions(one: Operation, size: int) -> list[Array]:
    """Every rank's input; reductions of them are exact, in any order."""
    most = max(rows_of(one, size, rank) for rank in range(size))
    shape = (most, *one.shape[1:]) if one.shape else ()
    count = int(np.prod(shape, dtype=int))
    flat = values(Step("allreduce", dtype=one.dtype, op=one.op, count=count), size, one.number)
    if not one.shape:
        return [np.array(flat[rank].reshape(())) for rank in range(size)]
    return [flat[rank].reshape(shape)[: rows_of(one, size, rank)].copy() for rank in range(size)]


def expected(one: Operation, size: int, rank: int) -> Any:
    """The expected result of a rank."""
    if one.collective == "barrier":
        return None
    xs = contributions(one, size)
    if one.collective == "broadcast":
        return xs[one.root % size]
    if one.collective == "allgather":
        return np.concatenate(xs)
    if one.collective == "alltoall":
        return np.concatenate([_sent(one, xs[source], size, source, rank) for source in range(size)])
    step = Step("allreduce", dtype=one.dtype, op=one.op)
    total = whole(step, np.stack(xs) if one.scale == 1 else np.stack([x * x.dtype.type(one.scale) for x in xs]))
    if one.scale != 1:
        total = total * total.dtype.type(one.scale**2)
    return total[share(total, rank, size)] if one.collective == "reducescatter" else total


def _sent(one: Operation, x: Array, size: int, source: int, to: int) -> Array:
    ends = np.cumsum(splits(one, size, source))
    part: Array = x[ends[to] - splits(one, size, source)[to] : ends[to]]
    return part


def item(one: Operation, engine: Engine) -> Item:
    """What this rank submits; collective if x is in a window."""
    if one.collective == "barrier":
        return Item("barrier", one.name, priority=one.priority)
    size, rank = engine.size, engine.rank
    x: Any = contributions(one, size)[rank]
    uniform = one.number % 2 == 0  # else the locations of arrays differ between ranks, as allowed
    if one.window and one.collective in ("allreduce", "broadcast"):  # for the others the ranks' sizes differ
        held = engine.comm.empty(x.shape, x.dtype)
        held[...] = x
        x = held if uniform or rank % 2 else x
    out, where = None, OUTPUTS[(OUTPUTS.index(one.out) + (0 if uniform else rank)) % 3]
    if where == "same" and one.collective in ("allreduce", "broadcast"):
        out = x
    elif where == "other":
        out = np.zeros(np.shape(expected(one, size, rank)), numpy_type(one.dtype))
    return Item(
        one.collective, one.name, x, out, one.op,
        root=one.root % size if one.collective == "broadcast" else -1,
        splits=splits(one, size, rank) if one.collective == "alltoall" else None,
        prescale=one.scale, postscale=one.scale**2, priority=one.priority,
    )  # fmt: skip


def check(one: Operation, submitted: Item, got: Any, size: int, rank: int) -> None:
    """Compares every bit of a result; NaNs are equal."""
    right = expected(one, size, rank)
    if one.collective == "barrier":
        return
    if one.collective == "alltoall":
        got, received = got
        assert list(received) == [splits(one, size, source)[rank] for source in range(size)], one
    if submitted.out is not None:
        assert got is submitted.out, one
    assert got.shape == right.shape, (one, got.shape, right.shape)
    assert got.dtype == right.dtype, one
    same = got == right
    if one.dtype in REALS:
        same |= np.isnan(got) & np.isnan(right)
    assert np.all(same), (one, rank, got, right)


def ones(name: str, count: int = 3, **options: Any) -> Item:
    """An allreduce of ones."""
    return Item("allreduce", name, np.ones(count), **options)


def on_engines(n: int, body: Callable[[Engine], Any], hosts: Sequence[int] = (), **options: Any) -> list[Any]:
    """body(engine) on n ranks that are threads, of one host or of these; returns the results in rank order."""

    def rank(comm: Communicator) -> Any:
        engine = Engine(comm, **options)
        result = body(engine)  # if it raises, closing would wait for the others
        engine.close()
        return result

    return local_world(n, hosts=hosts).run(rank)


def every_engine(*sizes: int, **options: Any) -> Any:
    """Makes a function of a rank's engine a test, run on ranks that are threads: see bodies.run_by.

    Without sizes the ranks' hosts may be the test's parameter. options: of Engine.
    """

    def run(n: int, body: Body, given: dict[str, Any]) -> None:
        hosts = given.get("hosts", ())
        on_engines(n or len(hosts), lambda engine: body(engine, **given), hosts, **options)

    return run_by(run, *sizes)


def play(engine: Engine, phases: Sequence[Sequence[Sequence[Operation]]], seed: int) -> None:
    """Submits the groups of each phase in a rank-specific order and pace, and checks the results.

    phases[i] is a list of groups, a group a list of operations that are submitted together.
    """
    choice = random.Random(f"{seed} {engine.rank}")
    for groups in phases:
        ready = [(group, [item(one, engine) for one in group]) for group in groups]
        choice.shuffle(ready)
        flying: list[tuple[Operation, Item, Any]] = []
        for group, items in ready:
            if choice.random() < 0.3:
                time.sleep(choice.random() * 0.002)
            members = list(zip(group, items, strict=True))
            choice.shuffle(members)  # of a group, too
            group, items = [one for one, _ in members], [one for _, one in members]
            flying += zip(group, items, engine.submit(items), strict=True)
        choice.shuffle(flying)
        for one, submitted, work in flying:
            assert work.name == one.name
            check(one, submitted, work.wait(SECONDS), engine.size, engine.rank)
            assert work.test()


def random_phases(choice: random.Random, phases: int, most: int) -> list[list[list[Operation]]]:
    """Phases of groups; names recur in later phases, mostly with the same shape and type."""
    made: list[list[list[Operation]]] = []
    for _ in range(phases):
        count = choice.randrange(1, most)
        if made and choice.random() < 0.4:  # the same again: may use the cached agreement
            made.append(made[-1])
            continue
        groups: list[list[Operation]] = []
        for one in [random_operation(choice, number) for number in range(count)]:
            if groups and choice.random() < 0.4:
                groups[-1].append(one)
            else:
                groups.append([one])
        made.append(groups)
    return made
