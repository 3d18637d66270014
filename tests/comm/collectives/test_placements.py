"""Placements of arrays: plain, in windows, views into windows, in place; the results are the same bits."""

from __future__ import annotations

import itertools
from typing import Any, cast

import numpy as np
import pytest
from calls import PLACES, call, expected, has, on_each_rank, place, share
from reference import TOPOLOGIES, Array, contributions, numpy_type

from pycollective import Communicator, MismatchError, local_world
from pycollective.schedule import topology
from pycollective.topologies.direct import Direct

COLLECTIVES = ("allreduce", "reduce", "reduce_scatter", "broadcast", "allgather", "gather", "scatter", "alltoall")
COUNTS = (7, 3001)  # below and above what is always staged


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("n", [2, 5])
@on_each_rank()
def test_every_pair_of_places(comm: Communicator, n: int, topology: str, collective: str) -> None:
    """x in one place and out in another, the same on all ranks; x is unchanged, and its rank's own after the call."""
    if not has(topology, collective):
        return
    data = {count: contributions("int32", "sum", n, count) for count in COUNTS}
    for count, here, there in itertools.product(COUNTS, PLACES, PLACES):
        xs = data[count]
        x = place(comm, xs[comm.rank], here)
        result = expected(collective, xs, 1, comm.rank)
        # Windows have the same size on all ranks: the root's result is the largest.
        largest = max((np.asarray(expected(collective, xs, 1, rank)) for rank in range(n)), key=lambda part: part.size)
        out = place(comm, np.zeros_like(largest), there)
        if result is not None:
            out = out[: len(result)]
        got = call(comm, collective, x, 1, out=out, topology=topology)
        after = x.copy()
        x.fill(-1)
        assert after.tolist() == xs[comm.rank].tolist()
        if result is None:
            assert got is None
            continue
        assert got is out
        assert got.tolist() == result.tolist(), (count, here, there)


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("n", [1, 3, 4])
@on_each_rank()
def test_in_place(comm: Communicator, n: int, topology: str, where: str) -> None:
    """out is x, or the corresponding part of it, for every collective that supports it."""
    data = {count: contributions("int64", "sum", n, count) for count in (0, *COUNTS, 40000)}
    for count, xs in data.items():
        x = place(comm, xs[comm.rank], where)
        assert comm.allreduce(x, out=x, topology=topology) is x
        assert x.tolist() == xs.sum(axis=0).tolist()
        x = place(comm, xs[comm.rank], where)
        assert comm.broadcast(x, n - 1, out=x, topology=topology) is x
        assert x.tolist() == xs[n - 1].tolist()
        if has(topology, "reduce"):
            x = place(comm, xs[comm.rank], where)
            comm.reduce(x, n - 1, out=x, topology=topology)
            assert x.tolist() == (xs.sum(axis=0) if comm.rank == n - 1 else xs[comm.rank]).tolist()
        if has(topology, "reduce_scatter"):
            x = place(comm, xs[comm.rank], where)
            mine = share(x, comm.rank, n)
            comm.reduce_scatter(x, out=x[mine], topology=topology)
            assert x[mine].tolist() == xs.sum(axis=0)[mine].tolist()
        if has(topology, "allgather"):
            whole = place(comm, np.zeros(n * count, np.int64), where)
            part = whole[comm.rank * count : (comm.rank + 1) * count]
            part[:] = xs[comm.rank]
            comm.allgather(part, out=whole, topology=topology)
            assert whole.tolist() == xs.ravel().tolist()


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("collective", [*COLLECTIVES, "scan", "exscan"])
@on_each_rank(3)
def test_ranks_may_place_their_arrays_differently(comm: Communicator, collective: str, topology: str) -> None:
    """Some ranks pass windows, others plain arrays: slower, not wrong."""
    if not has(topology, collective):
        return
    n = comm.size
    xs = contributions("float64", "max", n, 3000)
    np.nan_to_num(xs, copy=False)
    result = np.asarray(call(comm, collective, xs[comm.rank], topology=topology))
    for turn in range(n):
        mine = (comm.rank + turn) % n
        window = place(comm, xs[comm.rank], "window")
        target = comm.empty(n * 3000, np.float64)[: result.size]
        target.fill(0)  # what rank 0 has after an exscan
        x = (window, xs[comm.rank], window)[mine]
        out = (target, None, None)[mine] if result.shape else None
        got = call(comm, collective, x, out=out, topology=topology)
        if result.shape:
            assert got.tobytes() == result.tobytes()


def test_ranks_place_their_arrays_differently_in_a_topology_of_their_own() -> None:
    @topology("of_a_user", small=8 << 10, order="rank")
    class OfAUser(Direct):
        """The variants differ in the scratch that they need in place."""

    def body(comm: Communicator) -> None:
        for count, own, in_place in itertools.product((100, 600, 3000), range(3), (False, True)):
            x = place(comm, np.full(count, comm.rank), "window")
            x = x if comm.rank == own else x.copy()
            assert (comm.allreduce(x, x if in_place else None, topology=OfAUser) == 3).all()

    local_world(3).run(body)


@pytest.mark.parametrize("empty", [0, 1, 2])
@on_each_rank(3)
def test_a_rank_with_nothing(comm: Communicator, empty: int) -> None:
    """An empty share must not make the other ranks disagree about placements."""
    rows = [2000] * 3
    rows[empty] = 0
    whole = comm.empty(4000, np.float64)
    begin = sum(rows[: comm.rank])
    mine = whole[begin : begin + rows[comm.rank]] if rows[comm.rank] else np.empty(0)
    mine[:] = comm.rank
    comm.allgatherv(mine, rows, out=whole)
    assert whole.tolist() == [rank for rank in range(3) for _ in range(rows[rank])]
    two = comm.empty((2, 2000), np.float32)
    two[:] = comm.rank
    part = two[share(two, comm.rank, 3)]
    comm.reduce_scatter(two, out=part)
    assert (part == 3).all()


@on_each_rank(3)
def test_each_rank_may_use_another_window_and_offset(comm: Communicator) -> None:
    windows = [comm.empty(9000, np.float32) for _ in range(3)]
    for turn in range(6):
        x = windows[(comm.rank + turn) % 3][100 * comm.rank : 100 * comm.rank + 5000]
        out = windows[(comm.rank + turn + 1) % 3][7 * comm.rank + 3 :][:5000]
        x[:] = np.arange(5000) + comm.rank
        comm.allreduce(x, out=out, topology=TOPOLOGIES[turn])
        assert (out == 3 * np.arange(5000) + 3).all()


@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "float8_e5m2", "uint64"])
@on_each_rank(2)
def test_windows_of_every_kind_of_type(comm: Communicator, dtype: str) -> None:
    for name in (dtype, numpy_type(dtype)):
        x = comm.empty((3, 0, 2), name)
        assert x.shape == (3, 0, 2)
        x = comm.empty((50, 20), name)
        assert x.dtype == numpy_type(dtype)
        assert x.flags.c_contiguous
        x[:] = np.ones(x.shape)
        assert comm.allreduce(x, op="max").astype(float).tolist() == np.ones((50, 20)).tolist()
    assert comm.empty(cast(int, np.int64(3))).shape == (3,)
    assert comm.empty(()).shape == ()


@on_each_rank(2)
def test_empty_that_differs(comm: Communicator) -> None:
    shapes: list[Any] = [5, 6]
    with pytest.raises(MismatchError, match=r"empty\(\(5,.*empty\(\(6,|empty\(\(6,.*empty\(\(5,"):
        comm.empty(shapes[comm.rank])


def test_the_memory_of_a_window_lives_as_long_as_its_array() -> None:
    kept: list[Array] = []

    def body(comm: Communicator) -> None:
        x = comm.empty(100000, np.float64)
        x[:] = comm.rank
        kept.append(x[10:20])

    local_world(3).run(body)
    assert sorted(float(view.sum()) for view in kept) == [0, 10, 20]
