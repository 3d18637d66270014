"""Collective calls as data: how to make one, and the expected result of each rank."""

from __future__ import annotations

import ctypes
import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from reference import Array, reference

from pycollective import Communicator, local_world
from pycollective.comm.arguments.operators import Compiled, Op
from pycollective.schedule import COLLECTIVES
from pycollective.schedule.language import registry

REDUCING = ("allreduce", "reduce", "reduce_scatter")
MOVING = ("broadcast", "allgather", "gather", "scatter", "alltoall")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
PLACES = ("plain", "window", "view", "unaligned")
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
    else:
        whole = comm.empty(len(values) + 5, values.dtype)
        made = whole[3 : 3 + len(values)]
    made[...] = values
    return made


def on_ranks(n: int, parts: list[Part]) -> list[list[Any]]:
    """Runs the parts in sequence on every rank of a world of threads; results[part][rank]."""
    by_rank = local_world(n).run(lambda comm: [part(comm) for part in parts])
    return [list(results) for results in zip(*by_rank, strict=True)]


def on_each_rank(n: int = 0, hosts: Sequence[int] = ()) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """Makes a test of a function whose first argument is a communicator: it runs on each rank of a world of threads.

    n: number of ranks; hosts: their hosts, if on several. Without them: the test's parameter of the name.
    """

    def decorate(body: Callable[..., object]) -> Callable[..., None]:
        signature = inspect.signature(body)
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])

        @functools.wraps(body)
        def test(*args: Any, **options: Any) -> None:
            given = signature.bind(*args, **options).arguments
            places = hosts or given.get("hosts", ())
            world = local_world(len(places) or n or given["n"], hosts=places)
            world.run(lambda comm: body(comm, *args, **options))

        test.__signature__ = signature  # type: ignore[attr-defined]
        return test

    return decorate


def on_every(n: int | None, run: Callable[[int, Callable[[Any], Any]], object]) -> Any:
    """A decorator of a test: `run` calls it on each of n ranks, with its first argument; pytest gives the others.

    n: None: the test's parameter `n`, which only the ranks know, then.
    """

    def decorate(body: Callable[..., Any]) -> Any:
        @functools.wraps(body)
        def test(**arguments: Any) -> None:
            ranks = arguments.pop("n") if n is None else n
            run(ranks, lambda first: body(first, **arguments))

        number = inspect.Parameter("n", inspect.Parameter.KEYWORD_ONLY)
        _, *others = inspect.signature(body).parameters.values()
        test.__signature__ = inspect.Signature([*others, number] if n is None else others)  # type: ignore[attr-defined]
        return test

    return decorate


def every_rank(n: int | None = None) -> Any:
    """A decorator of a test, which runs on every rank of a world of threads: its first argument is a communicator."""
    return on_every(n, lambda ranks, body: local_world(ranks).run(body))
