"""Collectives that move data: every element type x collective x topology, any root, shapes, and the v-forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import MOVING, ROOTED, call, has, moved, on_ranks
from reference import DTYPES, RANKS, SMALL, TOPOLOGIES, Array, contributions, numpy_type

from pycollective import Communicator, MismatchError, local_world

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
@pytest.mark.parametrize("known", [True, False], ids=["counts", "no counts"])
def test_allgatherv(rows: list[int], topology: str, known: bool) -> None:
    xs = [all_bits("int32", 1, (count, 2), rank)[0] for rank, count in enumerate(rows)]

    def body(comm: Communicator) -> Array:
        counts = rows if known else None
        return np.asarray(comm.allgatherv(xs[comm.rank], counts, topology=topology))

    for got in local_world(4).run(body):
        assert got.tobytes() == np.concatenate(xs).tobytes()
        assert got.shape == (sum(rows), 2)


@pytest.mark.parametrize("nonblocking", [False, True])
def test_alltoallv(nonblocking: bool) -> None:
    rows = np.array([[0, 3, 1, 700], [2, 0, 0, 5], [0, 0, 0, 0], [1, 1, 900, 1]])

    def body(comm: Communicator) -> None:
        mine = rows[comm.rank]
        x = np.repeat(np.arange(4) + 10 * comm.rank, mine)[:, None] * np.ones(3, np.int64)
        if nonblocking:
            got = comm.ialltoallv(x, mine.tolist(), rows[:, comm.rank].tolist()).result(20)
        else:
            got = comm.alltoallv(x, mine.tolist())
        expected = np.repeat(10 * np.arange(4) + comm.rank, rows[:, comm.rank])
        assert got.shape == (len(expected), 3)
        assert (got == expected[:, None]).all()

    local_world(4).run(body)


def test_alltoallv_with_counts_that_disagree() -> None:
    def body(comm: Communicator) -> None:
        counts = [1, 2]
        with pytest.raises(MismatchError, match="rank 0 sends 1 rows to rank 0, which expects 2"):
            comm.alltoallv(np.ones(3), counts, [2, 2] if comm.rank == 0 else None)
        comm.barrier()

    local_world(2).run(body)


def test_v_forms_refuse_counts_that_do_not_fit() -> None:
    def body(comm: Communicator) -> None:
        negative = [-4, -4]
        negative[comm.rank] = 4
        for counts in ([1], [4], [2, 3], [1, 2, 3], negative):
            with pytest.raises(ValueError, match="counts"):
                comm.allgatherv(np.ones(4), counts)
            with pytest.raises(ValueError, match="counts"):
                comm.iallgatherv(np.ones(4), counts)
        for send in ([1, 2], [4], [5, -1], [1, 1, 2]):
            with pytest.raises(ValueError, match="send_counts"):
                comm.alltoallv(np.ones(4), send)
        with pytest.raises(ValueError, match="recv_counts must have 2 integers"):
            comm.alltoallv(np.ones(4), [2, 2], [4])
        comm.barrier()

    local_world(2).run(body)


def test_scatter_without_a_template() -> None:
    """Non-root ranks need no template if all get the same number of rows."""

    def body(comm: Communicator) -> None:
        whole = np.arange(12.0).reshape(6, 2) if comm.rank == 1 else None
        got = comm.scatter(whole, 1, out=np.empty((2, 2)))
        assert got.tolist() == np.arange(12.0).reshape(6, 2)[2 * comm.rank : 2 * comm.rank + 2].tolist()

    local_world(3).run(body)


def test_barrier_holds_all_ranks_until_the_last_arrives() -> None:
    arrived: list[int] = []

    def body(comm: Communicator) -> None:
        for _ in range(50):
            arrived.append(comm.rank)
            comm.barrier()
            assert len(arrived) % 4 == 0
            comm.barrier()

    local_world(4).run(body)
