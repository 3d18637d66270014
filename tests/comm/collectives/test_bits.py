"""Equal bits on every path: one-shot, two-shot, staged, zero-copy, in place, at any alignment, every time."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from calls import on_each_rank, place
from processes import run
from reference import IN_RANK_ORDER, NARROW, REALS, Array, in_rank_order, numpy_type, same_bits

from pycollective import Communicator, local_world

LENGTH = 200_000
SIZES = (1, 100, 3000, 17_000, 70_000, LENGTH)
"""Elements: one-shot and two-shot, within a tile and over many."""


def mixture(dtype: str, n: int, count: int = LENGTH) -> Array:
    """Numbers of all magnitudes, whose sums depend on the order; the same for each element at any count."""
    random = np.random.default_rng(7)
    values = random.standard_normal((n, LENGTH)) * 2.0 ** random.integers(-6, 5, (n, LENGTH))
    values[:, 11::997] = np.inf
    return np.ascontiguousarray(values.astype(numpy_type(dtype))[:, :count])


@pytest.fixture(scope="module", params=REALS)
def case(request: pytest.FixtureRequest) -> tuple[str, dict[int, tuple[Array, Array]]]:
    """(type, {number of ranks: (contributions, their sum in rank order)})."""
    data = {n: mixture(request.param, n) for n in (2, 3, 5)}
    return request.param, {n: (xs, in_rank_order(request.param, "sum", xs)) for n, xs in data.items()}


def test_the_order_is_visible_in_the_bits(case: tuple[str, dict[int, tuple[Array, Array]]]) -> None:
    """Else the tests below could not fail: another order, or rounding at each step, gives other bits."""
    dtype, data = case
    xs, expected = data[5]
    if dtype in NARROW:  # sums in float32 are almost exact: only the place of rounding is visible
        other = xs[0]
        for x in xs[1:]:
            other = in_rank_order(dtype, "sum", np.stack([other, x]))
    else:
        other = in_rank_order(dtype, "sum", xs[::-1])
    assert (other != expected).sum() > 100


@pytest.mark.parametrize("n", [2, 3, 5])
@on_each_rank()
def test_sizes_and_places(comm: Communicator, n: int, case: tuple[str, dict[int, tuple[Array, Array]]]) -> None:
    """One-shot or two-shot, staged or zero-copy, each element has the bits of its reduction in rank order."""
    xs, expected = case[1][n]
    for topology in IN_RANK_ORDER:
        for count in SIZES:
            mine = xs[comm.rank, :count]
            results = {"plain": comm.allreduce(mine, topology=topology)}
            window = place(comm, mine, "window")
            results["window in"] = comm.allreduce(window, topology=topology)
            results["windows"] = comm.allreduce(window, place(comm, mine, "view"), topology=topology)
            results["window out"] = comm.allreduce(mine, place(comm, mine, "window"), topology=topology)
            results["window in place"] = comm.allreduce(window, window, topology=topology)
            x = mine.copy()
            results["in place"] = comm.allreduce(x, x, topology=topology)
            results["nonblocking"] = comm.iallreduce(mine, topology=topology).result()
            at_root = comm.reduce(mine, 1, topology=topology)
            results["reduce"] = comm.broadcast(mine if at_root is None else at_root, 1)
            results["reduce_scatter"] = comm.allgatherv(comm.reduce_scatter(mine, topology=topology))
            for path, got in results.items():
                assert same_bits(got, expected[:count]), (topology, count, path)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn"])
@on_each_rank(3)
def test_every_alignment(comm: Communicator, dtype: str) -> None:
    """Places of x and of out, in windows and outside: at every offset within a register or cache line."""
    count = 1500
    xs = mixture(dtype, comm.size, count)
    expected, size = in_rank_order(dtype, "sum", xs), xs.itemsize
    shared_in, shared_out = (comm.empty(count + 64, xs.dtype) for _ in range(2))
    plain_in, plain_out = (np.empty(count + 64, xs.dtype) for _ in range(2))
    for begin in range(64 // size) if size > 1 else range(0, 64, 3):
        end = (5 * begin + comm.rank) % 64  # out begins at another offset, different on each rank
        for source, target in ((shared_in, shared_out), (plain_in, plain_out)):
            x, out = source[begin : begin + count], target[end : end + count]
            x[:] = xs[comm.rank]
            target[:] = 77
            comm.allreduce(x, out)
            assert same_bits(out, expected), begin
            assert (target[:end] == 77).all(), "written before out"
            assert (target[end + count :] == 77).all(), "written after out"
            comm.allreduce(x, x)
            assert same_bits(x, expected), begin
    raw = np.empty(count * size + 16, np.uint8)
    for begin in range(0, 16, 3):
        x = raw[begin : begin + count * size].view(xs.dtype)
        x[:] = xs[comm.rank]
        assert same_bits(comm.allreduce(x), expected), begin


def repeat(comm: Communicator, link: Connection | None, dtype: str, topology: str) -> list[bytes]:
    """The distinct results of 20 repeats of each form, with varying delays of the ranks."""
    xs = mixture(dtype, comm.size, 70_000)
    window, found = comm.empty(70_000, xs.dtype), []
    for turn in range(20):
        count = (3000, 70_000)[turn % 2]
        if turn % comm.size == comm.rank:
            sum(range(20_000))
        window[:] = xs[comm.rank]
        for got in (comm.allreduce(xs[comm.rank, :count], topology=topology),
                    comm.allreduce(window[:count], window[:count], topology=topology)):  # fmt: skip
            assert len(got) == count
            found.append(got[:3000].tobytes())
    return sorted(set(found))


@pytest.mark.parametrize("topology", IN_RANK_ORDER)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_repeats_and_threads_and_processes(dtype: str, topology: str) -> None:
    as_threads: list[list[bytes]] = local_world(4).run(lambda comm: repeat(comm, None, dtype, topology))
    as_processes: list[Any] = run(4, repeat, dtype, topology)
    expected = in_rank_order(dtype, "sum", mixture(dtype, 4, 3000)).tobytes()
    assert as_threads == as_processes == [[expected]] * 4


@pytest.mark.parametrize("topology", ["ring", "tree", "wheel", "halving_doubling", "random"])
@on_each_rank(5)
def test_all_ranks_have_the_same_bits_on_every_run(comm: Communicator, topology: str) -> None:
    """Also if the order depends on the chunk: it depends on nothing else."""
    x = mixture("float32", 5, 50_000)[comm.rank]
    found = {comm.allreduce(x, topology=topology).tobytes() for _ in range(20)}
    assert len(set.union(*comm.allgather_object(found))) == 1
