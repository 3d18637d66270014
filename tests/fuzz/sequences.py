"""Random sequences of collective calls that every rank makes and checks against NumPy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from calls import MOVING, PLACES, REDUCING, call, has, moved, place, reduced
from reference import DTYPES, INTEGERS, OPERATORS, REALS, TOPOLOGIES, Array, _integral, numpy_type, takes

from pycollective import Communicator, Handle

PATHS = [(name, topology) for name in (*REDUCING, *MOVING) for topology in TOPOLOGIES if has(topology, name)]
ALONE = ("barrier", "allgatherv", "alltoallv", "exchange", "within halves")
COUNTS = (0, 1, 2, 7, 63, 500, 1100, 5000, 20_000, 100_000)


@dataclass(frozen=True)
class Step:
    """One call; `root` is taken modulo the number of ranks. `out` "new": the call allocates its result."""

    collective: str
    topology: str = "direct"
    dtype: str = "float32"
    op: str = "sum"
    count: int = 1
    root: int = 0
    x: str = "plain"
    out: str = "new"
    waits: bool = True


def random_steps(seed: int | random.Random, length: int) -> list[Step]:
    """Steps that a seed determines, or that a generator draws."""
    choice = seed if isinstance(seed, random.Random) else random.Random(seed)
    steps = []
    for _ in range(length):
        name, topology = choice.choice(PATHS)
        if choice.random() < 0.2:
            name = choice.choice(ALONE)
        dtype = choice.choice(DTYPES)
        op = choice.choice([op for op in OPERATORS if takes(op, dtype)])
        spread = (choice.choice(PLACES), choice.choice(("new", "same", *PLACES)), choice.random() < 0.7)
        count = choice.choice((*COUNTS, choice.randrange(3001)))
        steps.append(Step(name, topology, dtype, op, count, choice.randrange(8), *spread))
    return steps


def values(step: Step, n: int, number: int) -> Array:
    """Contributions whose reductions are exact, in any order."""
    source = np.random.default_rng(number)
    shape = (n, step.count)
    if step.dtype == "bool":
        return source.integers(0, 2, shape).astype(bool)
    if step.dtype in INTEGERS and step.op != "avg":
        limits = np.iinfo(step.dtype)
        return source.integers(limits.min, limits.max, shape, step.dtype, endpoint=True)
    if step.op == "prod":
        return source.choice([0.5, 1.0, -1.0, 2.0], size=shape).astype(numpy_type(step.dtype))
    low = 0 if step.dtype.startswith("u") else -1
    return source.integers(low, 2, shape).astype(numpy_type(step.dtype))


def whole(step: Step, xs: Array) -> Array:
    """The reduction of xs, exactly."""
    compute = np.float64 if step.dtype == "float64" else np.float32 if step.dtype in REALS else xs.dtype
    total = _integral("sum" if step.op == "avg" else step.op, xs.astype(compute))
    if step.op == "avg":
        total = total / compute(len(xs)) if step.dtype in REALS else np.trunc(total / len(xs))
    return total.astype(xs.dtype)


def play(comm: Communicator, steps: Sequence[Step]) -> None:
    """Makes the calls; nonblocking ones are checked a few steps later."""
    flying: list[tuple[Step, int, Handle, Array | None]] = []
    for number, step in enumerate(steps):
        if step.collective in ALONE:
            play_alone(comm, step, number)
            continue
        flying.append(start(comm, step, number))
        if step.waits:
            check(*flying.pop())
        if len(flying) > 5:
            check(*flying.pop(number % 6))
    for landed in flying:
        check(*landed)


def start(comm: Communicator, step: Step, number: int) -> tuple[Step, int, Any, Array | None]:
    n, root, name = comm.size, step.root % comm.size, step.collective
    xs = values(step, n, number)
    if name in REDUCING:
        right = reduced(name, whole(step, xs), root, comm.rank, n)
        options = {"op": step.op, "topology": step.topology}
    else:
        right = moved(name, xs, root, comm.rank)
        options = {"topology": step.topology}
    x = place(comm, xs[comm.rank], step.x)
    out = None
    if step.out == "same" and name in ("allreduce", "broadcast", "reduce"):
        out = x
    elif step.out in PLACES:
        out = place(comm, np.zeros(n * step.count, xs.dtype), step.out)[: 0 if right is None else len(right)]
    return step, number, call(comm, name if step.waits else f"i{name}", x, root, out=out, **options), right


def check(step: Step, number: int, got: Any, right: Array | None) -> None:
    result = got.result(20) if isinstance(got, Handle) else got
    if right is None:
        assert result is None, (number, step)
    else:
        assert result.shape == right.shape, (number, step)
        assert ((result == right) | (result != result)).all(), (number, step)
        assert (np.isnan(result) == np.isnan(right)).all() if step.dtype in REALS else True, (number, step)


def play_alone(comm: Communicator, step: Step, number: int) -> None:
    n, me, count = comm.size, comm.rank, step.count % 3000
    if step.collective == "barrier":
        comm.barrier(topology=step.topology)
    elif step.collective == "allgatherv":
        rows = [(count * (rank + number)) % 1999 for rank in range(n)]
        got = comm.allgatherv(np.full(rows[me], me, np.int16), rows if step.waits else None)
        assert got.tolist() == [rank for rank in range(n) for _ in range(rows[rank])], (number, step)
    elif step.collective == "alltoallv":
        table = [[(count + 3 * a + 5 * b + number) % 700 for b in range(n)] for a in range(n)]
        got = comm.alltoallv(np.full(sum(table[me]), me, np.int64), table[me])
        assert got.tolist() == [a for a in range(n) for _ in range(table[a][me])], (number, step)
    elif step.collective == "exchange":
        if n > 1:
            sent = comm.isend(np.full(count, me, np.int32), (me + 1) % n)
            assert (comm.recv(np.empty(count, np.int32), (me - 1) % n) == (me - 1) % n).all(), (number, step)
            sent.wait(20)
    else:
        half = comm.split(me % 2, -me)
        assert half.allreduce(np.full(count, 1))[:1].tolist() == [half.size][:count], (number, step)
        half.free()
