"""float8_e8m0fnu, powers of two: reduced in float32 and rounded once, as ml_dtypes converts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from calls import on_each_rank, place

from pycollective import Communicator, _core, local_world

E8M0: np.dtype[Any] = np.dtype(ml_dtypes.float8_e8m0fnu)
Array = np.ndarray[Any, Any]


def bits(array: Array) -> list[int]:
    return [int(code) for code in np.asarray(array).view(np.uint8).ravel()]


def rounded(values: Array) -> Array:
    with np.errstate(all="ignore"):
        made: Array = values.astype(E8M0)
    return made


@pytest.mark.parametrize(
    ("op", "function"), [("sum", np.add), ("prod", np.multiply), ("min", np.minimum), ("max", np.maximum)]
)
def test_every_pair_of_elements_has_the_bits_of_ml_dtypes(op: str, function: np.ufunc) -> None:
    codes = np.arange(256, dtype=np.uint8)
    a, b = np.repeat(codes, 256).view(E8M0), np.tile(codes, 256).view(E8M0)
    with np.errstate(all="ignore"):
        expected = rounded(function(a.astype(np.float32), b.astype(np.float32)))
        assert bits(function(a, b)) == bits(expected)
    for got in local_world(2).run(lambda comm: comm.allreduce((a, b)[comm.rank], op=op)):
        assert got.dtype == E8M0
        assert bits(got) == bits(expected)


def test_conversion_rounds_to_the_nearest_ties_up() -> None:
    """For float32 products at and next to every tie, at the ends of the range, and below zero."""
    ones = np.ones(1, np.float32).astype(E8M0)
    ties = [1.5, 3.0, 6.0, 0.75, 1.5 * 2.0**127, 1.5 * 2.0**-126]
    beside = [float(np.nextafter(np.float32(tie), np.float32(end))) for tie in ties for end in (0, np.inf)]
    ends = [0.0, -1.0, np.inf, np.nan, 2.0**127, 2.0**-127, 2.0**-127 + 2.0**-149, 2.0**-128, 2.0**-149]
    factors = [*ties, *beside, *ends]
    for factor in factors:
        out = np.empty(1, E8M0)
        _core.combine("sum", [ones], [out], postscale=float(factor))
        assert bits(out) == bits(rounded(np.array([factor], np.float32))), factor


@pytest.mark.parametrize("n", range(1, 18))
@on_each_rank()
def test_on_1_to_17_ranks_they_are_reduced_in_float32(comm: Communicator, n: int) -> None:
    xs = np.random.default_rng(n).integers(100, 150, (n, 2001)).astype(np.uint8).view(E8M0)
    wide = xs.astype(np.float32)
    total = np.add.accumulate(wide, axis=0)[-1]
    for source in (xs[comm.rank], place(comm, xs[comm.rank], "window")):
        assert bits(comm.allreduce(source)) == bits(rounded(total))
        assert bits(comm.allreduce(source, op="avg")) == bits(rounded(total / np.float32(n)))
        assert bits(comm.allreduce(source, op="max")) == bits(rounded(wide.max(axis=0)))
        assert bits(comm.allgather(source)) == bits(xs)
        assert bits(comm.exscan(source)) == (
            bits(rounded(np.add.accumulate(wide, axis=0)[comm.rank - 1])) if comm.rank else [0] * 2001
        )


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch, "float8_e8m0fnu"):
        pytest.skip("this torch has no float8_e8m0fnu")

    def body(comm: Communicator) -> None:
        x = torch.full((3,), 2.0 * (1 + comm.rank)).to(torch.float8_e8m0fnu)
        got = comm.allreduce(x, op="prod")
        assert got.dtype is torch.float8_e8m0fnu
        assert got.float().tolist() == [8.0] * 3

    local_world(2).run(body)
