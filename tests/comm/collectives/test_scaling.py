"""prescale and postscale, averages, and corner cases of arithmetic: overflow, NaN, signed zeros, wraparound."""

from __future__ import annotations

import numpy as np
import pytest
from calls import REDUCING, call, has, on_ranks, reduced
from reference import (
    DTYPES,
    IN_RANK_ORDER,
    INTEGERS,
    NARROW,
    REALS,
    TOPOLOGIES,
    Array,
    contributions,
    finfo,
    in_rank_order,
    numpy_type,
    reference,
    same_bits,
)

from pycollective import Communicator, local_world

SCALES = [(0.5, 1.0), (1.0, 3.0), (0.3, 0.7), (2.0, 0.1)]


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("n", [1, 3, 4])
def test_scaling_of_reals(n: int, dtype: str, topology: str) -> None:
    cases = [
        (collective, op, before, after)
        for op in ("sum", "avg", "min", "max")
        for before, after in SCALES
        for collective in REDUCING
        if has(topology, collective)
    ]
    data = {op: contributions(dtype, op, n, 333) for _, op, _, _ in cases}
    for xs in data.values():
        xs[~(np.abs(xs.astype(np.float64)) < 16)] = 1  # stays finite when scaled

    def part(collective: str, op: str, before: float, after: float):  # type: ignore[no-untyped-def]
        options = {"op": op, "topology": topology, "prescale": before, "postscale": after}
        return lambda comm: call(comm, collective, data[op][comm.rank], n - 1, **options)

    results = on_ranks(n, [part(*case) for case in cases])
    for case, got in zip(cases, results, strict=True):
        collective, op, before, after = case
        whole = reference(dtype, op, data[op], before, after)
        bits = in_rank_order(dtype, op, data[op], before, after)
        for rank, mine in enumerate(got):
            expected = reduced(collective, whole, n - 1, rank, n)
            if expected is None:
                assert mine is None
                continue
            assert expected.error(mine) == "", (case, rank)
            if topology in IN_RANK_ORDER:
                assert same_bits(mine, reduced(collective, bits, n - 1, rank, n)), (case, rank)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_scaling_of_integers_truncates(dtype: str, topology: str) -> None:
    xs = np.arange(1, 13).reshape(3, 4).astype(dtype)
    if not dtype.startswith("u"):
        xs[:, 1] *= -1
    results = on_ranks(
        3,
        [
            lambda comm: comm.allreduce(xs[comm.rank], topology=topology, prescale=0.5),
            lambda comm: comm.allreduce(xs[comm.rank], topology=topology, postscale=0.5),
            lambda comm: comm.allreduce(xs[comm.rank], topology=topology, op="avg"),
            lambda comm: comm.allreduce(xs[comm.rank], topology=topology, op="max", prescale=2, postscale=1.5),
        ],
    )
    wide = xs.astype(np.float64)
    expected = [
        np.trunc(wide * 0.5).sum(axis=0),
        np.trunc(wide.sum(axis=0) * 0.5),
        np.trunc(wide.sum(axis=0) / 3),
        np.trunc((wide * 2).max(axis=0) * 1.5),
    ]
    for ranks, right in zip(results, expected, strict=True):
        for got in ranks:
            assert got.dtype == xs.dtype
            assert got.tolist() == right.tolist()


def test_factors_that_leave_the_range() -> None:
    def scaled(dtype: str, x: int, **factors: float) -> int:
        return int(local_world(2).run(lambda comm: comm.allreduce(np.full(40, x, dtype), **factors))[0][-1])

    assert scaled("uint8", 3, prescale=-1) == 256 - 6
    assert scaled("uint64", 3, postscale=-1) == (1 << 64) - 6
    assert scaled("int64", 3, postscale=1e30) == (1 << 63) - 1
    assert scaled("int64", -3, postscale=float("inf")) == -(1 << 63)
    assert scaled("uint64", 1, postscale=1e19) == (1 << 64) - 1
    assert scaled("uint64", 1, postscale=0.75 * 2**64 / 2) == 3 << 62
    assert scaled("int32", 7, prescale=float("nan")) == 0


@pytest.mark.parametrize("topology", IN_RANK_ORDER)
@pytest.mark.parametrize("dtype", [name for name in INTEGERS if "64" not in name])  # sums are of 64 bits
def test_the_average_of_large_integers_does_not_wrap(dtype: str, topology: str) -> None:
    limits = np.iinfo(dtype)
    xs = np.array([[limits.max, limits.min, limits.max, 7]] * 3, dtype)
    xs[1, 3], xs[2, 3] = limits.max, 1
    for got in local_world(3).run(lambda comm: comm.allreduce(xs[comm.rank], op="avg", topology=topology)):
        assert got.tolist() == [int(limits.max), int(limits.min), int(limits.max), (int(limits.max) + 8) // 3]


@pytest.mark.parametrize("dtype", DTYPES)
def test_scaling_is_refused_where_it_is_undefined(dtype: str) -> None:
    xs = contributions(dtype, "sum", 2, 7)

    def body(comm: Communicator) -> Array:
        for op in ("lor", "band"):
            with pytest.raises(TypeError, match=r"prescale|does not take"):
                comm.allreduce(xs[comm.rank], op=op, prescale=2.0)
        if dtype == "bool":
            with pytest.raises(TypeError, match="prescale"):
                comm.allreduce(xs[comm.rank], postscale=2.0)
        return np.asarray(comm.allreduce(xs[comm.rank]))

    for got in local_world(2).run(body):
        assert reference(dtype, "sum", xs).error(got) == ""


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("dtype", REALS)
def test_not_a_number_wins(dtype: str, topology: str) -> None:
    """On any rank, as with numpy.minimum, numpy.maximum, + and *."""
    xs = np.ones((4, 70)).astype(numpy_type(dtype))
    for rank in range(4):
        xs[rank, rank::9] = np.nan
    nan = np.isnan(xs).any(axis=0)
    assert nan.any()
    assert not nan.all()
    operators = ("sum", "avg", "prod", "min", "max")
    results = zip(
        *local_world(4).run(lambda comm: [comm.allreduce(xs[comm.rank], op=op, topology=topology) for op in operators]),
        strict=True,
    )
    for op, ranks in zip(operators, results, strict=True):
        for got in ranks:
            assert np.isnan(got).tolist() == nan.tolist(), op


@pytest.mark.parametrize("dtype", REALS)
def test_overflow_and_signed_zeros(dtype: str) -> None:
    kind = numpy_type(dtype)
    largest = 448.0 if dtype == "float8_e4m3fn" else float(finfo(kind).max)
    xs = np.array([[largest, -largest, -0.0, -0.0, largest], [largest, -largest, -0.0, 0.0, -largest]]).astype(kind)
    over = np.nan if dtype == "float8_e4m3fn" else np.inf  # without infinity
    for got in local_world(2).run(lambda comm: comm.allreduce(xs[comm.rank])):
        expected = np.array([over, -over, -0.0, 0.0, 0.0]).astype(kind)
        assert same_bits(got, expected), got


@pytest.mark.parametrize("dtype", NARROW)
def test_one_rounding_not_one_per_contribution(dtype: str) -> None:
    """Eight halves of a unit in the last place are lost if each sum is rounded, but not if only the last is."""
    kind = numpy_type(dtype)
    half = float(finfo(kind).eps) / 2
    xs = np.full((9, 40), half).astype(kind)
    xs[0] = 1
    for got in local_world(9).run(lambda comm: comm.allreduce(xs[comm.rank])):
        assert (got.astype(np.float64) == 1 + 8 * half).all()
