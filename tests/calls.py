"""Collective calls as data: how to make one, and the expected result of each rank."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from bodies import Body, run_by
from reference import Array, reference

from pycollective import Communicator, local_world, shared_arrays
from pycollective.comm.arguments.operators import Compiled, Op
from pycollective.schedule import COLLECTIVES
from pycollective.schedule.language import registry

REDUCING = ("allreduce", "reduce", "reduce_scatter")
MOVING = ("broadcast", "allgather", "gather", "scatter", "alltoall")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
PLACES = ("plain", "window", "view", "shared", "unaligned")
TOPOLOGIES_OF = {name: [row.name for row in registry.describe() if name in row.collectives] for name in COLLECTIVES}
"""By collective: the topologies that support it."""

Part = Callable[[Communicator], Any]


def has(topology: str, collective: str) -> bool:
    """Whether the topology has a program for the collective."""
    return collective in registry.info(topology).collectives


def call(comm: Communicator, collective: str, x: Any, root: int = 0, out: Any = None, **options: Any) -> Any:
    """One blocking or (`iallreduce`, ...) nonblocking call; passes the root if there is one."""
    where = {"root": root} if collective.removeprefix("i") in ROOTED else {}
    return getattr(comm, collective)(x, out=out, **where, **options)


def sum_that(acts: Callable[[], object]) -> tuple[Op, Any]:
    """A sum of float64 that does something first, and what must be kept alive with it."""

    @ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_double), ctypes.c_int64)
    def add(into: Any, x: Any, count: int) -> None:
        acts()
        for i in range(count):
            into[i] += x[i]

    op = Op(lambda a, b: a + b)
    op._compiled["float64"] = Compiled(SimpleNamespace(address=ctypes.cast(add, ctypes.c_void_p).value), 1)
    return op, add


def share(values: Any, rank: int, size: int) -> slice:
    """The rows of a rank's share of an array, as numpy.array_split cuts it."""
    each, extra = divmod(len(values), size)
    begin = rank * each + min(rank, extra)
    return slice(begin, begin + each + (rank < extra))


def moved(collective: str, xs: Array, root: int, rank: int) -> Array | None:
    """A rank's result, for xs of shape (n, count, ...), of a collective that only moves data."""
    n = len(xs)
    if collective == "broadcast":
        return np.asarray(xs[root])
    if collective == "allgather" or (collective == "gather" and rank == root):
        return np.concatenate(list(xs))
    if collective == "scatter":
        return np.asarray(xs[root][share(xs[root], rank, n)])
    if collective == "alltoall":
        return np.concatenate([x[share(x, rank, n)] for x in xs])
    return None


def reduced(collective: str, whole: Any, root: int, rank: int, n: int) -> Any:
    """A rank's part of the full reduction: of an array, or of a Reference."""
    if collective == "reduce":
        return whole if rank == root else None
    if collective == "reduce_scatter":
        return whole[share(getattr(whole, "value", whole), rank, n)]
    return whole


def expected(collective: str, xs: Array, root: int, rank: int) -> Array | None:
    """A rank's result for xs of shape (n, count, ...), summed if the collective reduces; for exact types."""
    if collective in REDUCING:
        part: Array | None = reduced(collective, reference(str(xs.dtype), "sum", xs).value, root, rank, len(xs))
        return part
    return moved(collective, xs, root, rank)


def place(comm: Communicator, values: Array, where: str) -> Array:
    """A copy of the values in memory of the given kind; collective if it is a window."""
    if where == "plain":
        return values.copy()
    if where == "unaligned":  # element addresses that are not multiples of the element
        raw = np.empty(values.nbytes + 1, np.uint8)
        made = raw[1:].view(values.dtype).reshape(values.shape)
    elif where == "window":
        made = comm.empty(values.shape, values.dtype)
    elif where == "shared":  # part of a large array
        with shared_arrays():
            made = np.empty(values.nbytes + (64 << 10), np.uint8)[: values.nbytes].view(values.dtype)
            made = made.reshape(values.shape)
    else:
        whole = comm.empty(len(values) + 5, values.dtype)
        made = whole[3 : 3 + len(values)]
    made[...] = values
    return made


def on_ranks(n: int, parts: list[Part]) -> list[list[Any]]:
    """Runs the parts in sequence on every rank of a world of threads; results[part][rank]."""
    by_rank = local_world(n).run(lambda comm: [part(comm) for part in parts])
    return [list(results) for results in zip(*by_rank, strict=True)]


def on_each_rank(*sizes: int, hosts: Sequence[int] = (), **options: Any) -> Callable[[Body], Any]:
    """Makes a function of a communicator a test, run on each rank of worlds of threads: see bodies.run_by.

    hosts: of the ranks, if on several. Without sizes they may be the test's parameter. options: of local_world.
    """

    def run(n: int, body: Body, given: dict[str, Any]) -> None:
        places = hosts or given.get("hosts", ())
        local_world(len(places) or n, hosts=places, **options).run(lambda comm: body(comm, **given))

    return run_by(run, *([len(hosts)] if hosts else sizes))
