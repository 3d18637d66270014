"""Collectives that move data: every element type x collective x topology, any root, shapes, and the v-forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from calls import MOVING, ROOTED, call, has, moved, on_each_rank, on_ranks
from reference import DTYPES, RANKS, SMALL, TOPOLOGIES, Array, contributions, numpy_type

from pycollective import Communicator, local_world

PAIRS = [(collective, topology) for collective in MOVING for topology in TOPOLOGIES if has(topology, collective)]


def all_bits(dtype: str, n: int, shape: tuple[int, ...], seed: int = 1) -> Array:
    """Arbitrary bits of elements, for every rank: moving must not interpret them."""
    if dtype == "bool":
        return np.random.default_rng(seed).integers(0, 2, (n, *shape)).astype(bool)
    kind = numpy_type(dtype)
    raw = np.random.default_rng(seed).integers(0, 256, (n, *shape, kind.itemsize), np.uint8)
    return raw.view(kind).reshape(n, *shape)


def check(collective: str, xs: Array, root: int, got: list[Any]) -> None:
    for rank, mine in enumerate(got):
        expected = moved(collective, xs, root, rank)
        if expected is None:
            assert mine is None
        else:
            assert mine.dtype == xs.dtype
            assert mine.shape == expected.shape
            assert mine.tobytes() == expected.tobytes(), (collective, root, rank)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", RANKS)
def test_moving(n: int, dtype: str) -> None:
    cases = [(collective, topology, count, (count + i) % n) for i, (collective, topology) in enumerate(PAIRS)
             for count in SMALL]  # fmt: skip
    data = {count: all_bits(dtype, n, (count,)) for count in SMALL}

    def part(collective: str, topology: str, count: int, root: int):  # type: ignore[no-untyped-def]
        return lambda comm: call(comm, collective, data[count][comm.rank], root, topology=topology)

    results = on_ranks(n, [part(*case) for case in cases])
    for (collective, _, count, root), got in zip(cases, results, strict=True):
        check(collective, data[count], root, got)


@pytest.mark.parametrize(("collective", "topology"), PAIRS)
def test_every_root_and_shapes_of_several_axes(collective: str, topology: str) -> None:
    n, shapes = 5, [(7, 3), (10, 2, 11), (3, 0), (1, 1000), (23,)]
    cases = [(shape, root) for shape in shapes for root in (range(n) if collective in ROOTED else [0])]
    data = {shape: all_bits("float32", n, shape) for shape in shapes}

    def part(shape: tuple[int, ...], root: int):  # type: ignore[no-untyped-def]
        return lambda comm: call(comm, collective, data[shape][comm.rank], root, topology=topology)

    results = on_ranks(n, [part(*case) for case in cases])
    for (shape, root), got in zip(cases, results, strict=True):
        check(collective, data[shape], root, got)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("n", [2, 3, 8])
def test_every_hub_and_root(n: int, topology: str) -> None:
    """Parameters of a topology change which ranks do the work, never the result."""
    named = [f"{topology}(hub={hub})" for hub in range(n)] if topology in ("star", "wheel") else [topology]
    xs = contributions("int64", "sum", n, 100)
    cases = [(collective, name, root) for name in named for root in range(n) for collective in ("broadcast", "reduce")
             if has(topology, collective)]  # fmt: skip

    def part(collective: str, name: str, root: int):  # type: ignore[no-untyped-def]
        return lambda comm: call(comm, collective, xs[comm.rank], root, topology=name)

    for (collective, _, root), got in zip(cases, on_ranks(n, [part(*case) for case in cases]), strict=True):
        if collective == "broadcast":
            check(collective, xs, root, got)
        else:
            assert [mine is None for mine in got] == [rank != root for rank in range(n)]
            assert got[root].tolist() == xs.sum(axis=0).tolist()


@pytest.mark.parametrize("topology", [name for name in TOPOLOGIES if has(name, "allgather")])
@pytest.mark.parametrize("rows", [[3, 0, 5, 1], [0, 0, 0, 0], [0, 2000, 0, 1], [5, 4, 3, 2]])
@on_each_rank(4)
def test_allgatherv(comm: Communicator, rows: list[int], topology: str) -> None:
    xs = [all_bits("int32", 1, (count, 2), rank)[0] for rank, count in enumerate(rows)]
    x = xs[comm.rank]
    for got in (
        comm.allgatherv(x, rows, topology=topology),
        comm.allgatherv(x, topology=topology),  # the counts are asked for
        comm.iallgatherv(x, rows, topology=topology).result(20),
    ):
        assert got.tobytes() == np.concatenate(xs).tobytes()
        assert got.shape == (sum(rows), 2)


@on_each_rank(4)
def test_alltoallv(comm: Communicator) -> None:
    rows = np.array([[0, 3, 1, 700], [2, 0, 0, 5], [0, 0, 0, 0], [1, 1, 900, 1]])
    mine, theirs = rows[comm.rank].tolist(), rows[:, comm.rank].tolist()
    x = np.repeat(np.arange(4) + 10 * comm.rank, mine)[:, None] * np.ones(3, np.int64)
    expected = np.repeat(10 * np.arange(4) + comm.rank, theirs)
    for counts in ([mine], [mine, theirs]):
        for got in (comm.alltoallv(x, *counts), comm.ialltoallv(x, *counts).result(20)):
            assert got.shape == (len(expected), 3)
            assert (got == expected[:, None]).all()


@on_each_rank(2)
def test_v_forms_refuse_counts_that_do_not_fit(comm: Communicator) -> None:
    x, negative = np.ones(4), [-4, -4]
    negative[comm.rank] = 4
    odd: list[Any] = [[4.0, 4], [1 << 63, 4], [1 << 62, 1 << 62], "44", 5]
    rows = [[1], [4], [2, 3], [3, 3], [1, 2, 3], negative, *odd]
    forms: list[tuple[str, Callable[[Any], Any], list[Any]]] = [
        ("counts", lambda counts: comm.allgatherv(x, counts), rows),
        ("counts", lambda counts: comm.iallgatherv(x, counts), rows),
        ("send_counts", lambda counts: comm.alltoallv(x, counts), [[1, 2], [4], [5, -1], [1, 1, 2], *odd]),
        ("recv_counts", lambda counts: comm.alltoallv(x, [2, 2], counts), [[4], [2, -2], [2.0, 2], [1 << 63, 0], "22"]),
    ]
    for words, form, cases in forms:
        for counts in cases:
            with pytest.raises((ValueError, TypeError), match=words):
                form(counts)
    with pytest.raises(ValueError, match="recv_counts must have 2 integers"):
        comm.alltoallv(x, [2, 2], [4])
    comm.barrier()


@on_each_rank(3)
def test_scatter_without_a_template(comm: Communicator) -> None:
    """Non-root ranks need no template if all get the same number of rows."""
    whole = np.arange(12.0).reshape(6, 2) if comm.rank == 1 else None
    got = comm.scatter(whole, 1, out=np.empty((2, 2)))
    assert got.tolist() == np.arange(12.0).reshape(6, 2)[2 * comm.rank : 2 * comm.rank + 2].tolist()


def test_barrier_holds_all_ranks_until_the_last_arrives() -> None:
    arrived: list[int] = []

    def body(comm: Communicator) -> None:
        for _ in range(50):
            arrived.append(comm.rank)
            comm.barrier()
            assert len(arrived) % 4 == 0
            comm.barrier()

    local_world(4).run(body)
