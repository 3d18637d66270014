"""Random inputs, poison, and the reference behind the ``#wrong`` column.

A rank's input is a random block of ``PERIOD`` elements, repeated.  The period is prime, so no chunk or tile
boundary falls together with it and a misplaced chunk is seen, while the float64 reference of a 256 MiB
buffer is computed on one period instead of on gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from pycollective.comm.arguments.arrays import numpy_dtype

from .cases import BARRIER, SENDRECV, Case, pair_partner

__all__ = ["PERIOD", "count_wrong", "fill_input", "poison"]

PERIOD = 65_521
_SEED = 20_240_517

_finfo: Any = ml_dtypes.finfo  # also of NumPy's own types

Array = NDArray[Any]


@lru_cache(maxsize=64)
def _block(rank: int, dtype: str) -> Array:
    generator = np.random.default_rng([_SEED, rank])
    kind = numpy_dtype(dtype)
    if kind.kind == "b":
        return generator.integers(0, 2, PERIOD).astype(kind)
    if kind.kind in "iu":
        # small, as the sum of signed integers that overflow is anybody's guess (Open MPI's saturates)
        largest = 7 if kind.itemsize == 1 else 100
        return generator.integers(0 if kind.kind == "u" else -largest, largest + 1, PERIOD).astype(kind)
    return generator.uniform(-1, 1, PERIOD).astype(kind)


def fill_input(array: Array, rank: int, dtype: str) -> None:
    """Fill a flat array with the rank's input."""
    block, whole = _block(rank, dtype), array.size // PERIOD
    array[: whole * PERIOD].reshape(whole, PERIOD)[:] = block
    array[whole * PERIOD :] = block[: array.size - whole * PERIOD]


def poison(array: Array) -> None:
    """Overwrite with what no result contains: NaN for floats, all bits for integers, alternating bools."""
    if array.dtype.kind == "b":
        array[:] = False
        array[::2] = True
    else:
        array.view(np.uint8)[:] = 0xFF


@dataclass(frozen=True)
class _Segment:
    """Elements ``start:stop`` must be ``values[(i - start + phase) % PERIOD]``, give or take ``slack``."""

    start: int
    stop: int
    phase: int
    values: Array
    slack: Array | None


@lru_cache(maxsize=8)
def _reduced(dtype: str, op: str, sources: tuple[int, ...]) -> tuple[Array, Array | None]:
    """One period of the reduction over some ranks, exact or in float64, and the rounding it may carry."""
    kind, ranks = numpy_dtype(dtype), len(sources)
    blocks = [_block(rank, dtype) for rank in sources]
    if kind.kind in "biu":
        return _reduce_exactly(blocks, op, kind), None
    wide = np.stack([block.astype(np.float64) for block in blocks])
    if op in ("min", "max"):
        return (wide.min(0) if op == "min" else wide.max(0)), None
    if op == "prod":
        values, size = wide.prod(0), np.abs(wide).prod(0)
    else:
        share = ranks if op == "avg" else 1
        values, size = wide.sum(0) / share, np.abs(wide).sum(0) / share
    information = _finfo(kind)
    # one rounding a step, at most one step a rank, and one for the average
    return values, (ranks + 1) * float(information.eps) * size + ranks * float(information.smallest_subnormal)


@lru_cache(maxsize=8)
def _mixed(dtype: str, weights: tuple[tuple[int, float], ...]) -> tuple[Array, Array]:
    """One period of the weighted sum over some ranks in float64, and the rounding it may carry."""
    products = np.stack([weight * _block(source, dtype).astype(np.float64) for source, weight in weights])
    information = _finfo(numpy_dtype(dtype))
    # the weights, the products, their sums and the result are rounded
    slack = (len(weights) + 3) * float(information.eps) * np.abs(products).sum(0)
    return products.sum(0), slack + len(weights) * float(information.smallest_subnormal)


def _reduce_exactly(blocks: list[Array], op: str, kind: np.dtype[Any]) -> Array:
    functions: dict[str, Any] = {
        "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
        "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
        "land": np.logical_and, "lor": np.logical_or,
    }  # fmt: skip
    if op not in functions:
        raise ValueError(f"no exact reference for {op} on {kind.name}")
    result = blocks[0]
    for block in blocks[1:]:
        result = functions[op](result, block)
    return result.astype(kind)


def _expected(case: Case, rank: int) -> Iterator[_Segment]:
    """Derive from the collectives' table which rank's input each part of the output has, or a reduction of which."""
    row, count = case.kind, case.count
    if case.collective == SENDRECV:
        partner = pair_partner(rank, case.ranks)
        if partner is not None:
            yield _Segment(0, count, 0, _block(partner, case.dtype), None)
        return
    if case.collective == BARRIER or not (row.has_output(rank, case.root) and row.has_result(rank)):
        return
    if row.reduces:
        sources = tuple(source for source in range(case.ranks) if row.contributes(source, rank))
        values, slack = _reduced(case.dtype, case.op, sources)
        yield _Segment(0, count, rank * count if row.packed_output else 0, values, slack)
        return
    if row.weighted:
        values, slack = _mixed(case.dtype, tuple(case.graph(rank, case.ranks).items()))
        yield _Segment(0, count, 0, values, slack)
        return
    senders = range(case.ranks) if row.in_blocks and not row.packed_output else (case.root,)
    for place, sender in enumerate(senders):
        phase = rank * count if row.in_blocks and not row.packed_input else 0
        yield _Segment(place * count, (place + 1) * count, phase, _block(sender, case.dtype), None)


def count_wrong(output: Array, case: Case, rank: int) -> int:
    """How many elements of a rank's output differ from the reference by more than the type's rounding."""
    wrong = 0
    for segment in _expected(case, rank):
        values = np.roll(segment.values, -(segment.phase % PERIOD))
        slack = None if segment.slack is None else np.roll(segment.slack, -(segment.phase % PERIOD))
        for start in range(segment.start, segment.stop, PERIOD):
            got = output[start : min(start + PERIOD, segment.stop)]
            wrong += _differing(got, values[: got.size], None if slack is None else slack[: got.size])
    return wrong


def _differing(got: Array, values: Array, slack: Array | None) -> int:
    if slack is None:
        return int(np.count_nonzero(got != values.astype(got.dtype)))
    # a reference rounded to float32 is well within the slack of anything that is no wider
    wide = np.float64 if got.dtype.itemsize == 8 else np.float32
    distance = np.subtract(got.astype(wide, copy=False), values.astype(wide))
    close = np.abs(distance, out=distance) <= slack  # NaN is never close
    return int(got.size - np.count_nonzero(close))
