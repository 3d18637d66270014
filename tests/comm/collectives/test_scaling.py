"""prescale and postscale, averages, and corner cases of arithmetic: overflow, NaN, signed zeros, wraparound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import REDUCING, call, has, on_each_rank, on_ranks
from reference import (
    DTYPES,
    IN_RANK_ORDER,
    INTEGERS,
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

from comm.collectives.test_reductions import errors
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
        found = errors(collective, whole, bits if topology in IN_RANK_ORDER else None, n - 1, got)
        assert not found, case


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("dtype", INTEGERS)
@on_each_rank(3)
def test_scaling_of_integers_truncates(comm: Communicator, dtype: str, topology: str) -> None:
    xs = np.arange(1, 13).reshape(3, 4).astype(dtype)
    if not dtype.startswith("u"):
        xs[:, 1] *= -1
    wide = xs.astype(np.float64)
    cases: tuple[tuple[Array, dict[str, Any]], ...] = (
        (np.trunc(wide * 0.5).sum(axis=0), {"prescale": 0.5}),
        (np.trunc(wide.sum(axis=0) * 0.5), {"postscale": 0.5}),
        (np.trunc(wide.sum(axis=0) / 3), {"op": "avg"}),
        (np.trunc((wide * 2).max(axis=0) * 1.5), {"op": "max", "prescale": 2, "postscale": 1.5}),
    )
    for expected, options in cases:
        got = comm.allreduce(xs[comm.rank], topology=topology, **options)
        assert got.dtype == xs.dtype
        assert got.tolist() == expected.tolist()


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
@on_each_rank(2)
def test_scaling_is_refused_where_it_is_undefined(comm: Communicator, dtype: str) -> None:
    xs = contributions(dtype, "sum", 2, 7)
    for op in ("lor", "band"):
        with pytest.raises(TypeError, match=r"prescale|does not take"):
            comm.allreduce(xs[comm.rank], op=op, prescale=2.0)
    if dtype == "bool":
        with pytest.raises(TypeError, match="prescale"):
            comm.allreduce(xs[comm.rank], postscale=2.0)
    assert reference(dtype, "sum", xs).error(comm.allreduce(xs[comm.rank])) == ""


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("dtype", REALS)
@on_each_rank(4)
def test_not_a_number_wins(comm: Communicator, dtype: str, topology: str) -> None:
    """On any rank, as with numpy.minimum, numpy.maximum, + and *."""
    xs = np.ones((4, 70)).astype(numpy_type(dtype))
    for rank in range(4):
        xs[rank, rank::9] = np.nan
    nan = np.isnan(xs).any(axis=0)
    assert nan.any()
    assert not nan.all()
    for op in ("sum", "avg", "prod", "min", "max"):
        assert np.isnan(comm.allreduce(xs[comm.rank], op=op, topology=topology)).tolist() == nan.tolist(), op


@pytest.mark.parametrize("dtype", REALS)
def test_overflow_and_signed_zeros(dtype: str) -> None:
    kind = numpy_type(dtype)
    largest = 448.0 if dtype == "float8_e4m3fn" else float(finfo(kind).max)
    xs = np.array([[largest, -largest, -0.0, -0.0, largest], [largest, -largest, -0.0, 0.0, -largest]]).astype(kind)
    over = np.nan if dtype == "float8_e4m3fn" else np.inf  # without infinity
    for got in local_world(2).run(lambda comm: comm.allreduce(xs[comm.rank])):
        expected = np.array([over, -over, -0.0, 0.0, 0.0]).astype(kind)
        assert same_bits(got, expected), got
