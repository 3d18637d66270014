"""Reduces the contributions of all ranks in rank order: ((rank 0 + rank 1) + rank 2) + ..., the bits of `direct`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycollective import _core

Array = NDArray[Any]
Operator = str | Callable[[Any, Any], Any]


def reduce_rows(rows: Array, out: Array, op: Operator, scale: tuple[float, float]) -> None:
    """Reduce the ranks' contributions.

    Args:
        rows: (ranks, count), one row per rank's contribution.
        out: (count,), of the same type; may be one of the rows.
        op: an operator's name, for the executor's own kernels, or a user-defined function of two arrays or scalars.
        scale: factors on each contribution and on the result.

    Raises:
        TypeError: the operator does not support the type, or factors.
    """
    if out.size == 0:
        return
    if isinstance(op, str):
        _core.combine(op, list(rows), [out], prescale=scale[0], postscale=scale[1])
        return
    work = _work_dtype(rows.dtype, scale)
    function = _over_arrays(op, work)
    total = _scaled(rows[0], work, scale[0])
    for row in rows[1:]:
        total = function(total, _scaled(row, work, scale[0]))
    with np.errstate(over="ignore"):  # a float16 overflows to infinity, as it does in C++
        out[:] = _scaled(np.asarray(total, work), work, scale[1]).astype(out.dtype)


def _work_dtype(dtype: np.dtype[Any], scale: tuple[float, float]) -> np.dtype[Any]:
    """The type in which a user-defined function computes: small floats are rounded once, at the end."""
    if dtype == np.bool_:
        return dtype
    if dtype.kind in "iu":
        return np.dtype(np.int64 if dtype.kind == "i" else np.uint64) if scale != (1.0, 1.0) else dtype
    return dtype if dtype.kind == "c" or dtype in (np.float32, np.float64) else np.dtype(np.float32)


def _scaled(x: Array, work: np.dtype[Any], factor: float) -> Array:
    if factor == 1.0:
        return x.astype(work)
    if work.kind in "iu":
        return (x.astype(np.float64) * factor).astype(work)
    made: Array = x.astype(work) * work.type(factor)
    return made


def _over_arrays(function: Callable[[Any, Any], Any], work: np.dtype[Any]) -> Callable[[Any, Any], Any]:
    """A user-defined function applied to arrays; one that only takes scalars is called for each element."""
    probe = np.ones(2, work)
    try:
        if np.shape(function(probe, probe)) == (2,):
            return function
    except (TypeError, ValueError):
        pass
    return np.vectorize(function, otypes=[work])
