"""Adasum: sums that remain sensible for large batches.

Two parallel gradients are averaged, two orthogonal ones added, and cases in between interpolated:

    adasum(a, b) = (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b

More than two are combined in a binary tree of the ranks; if their number is not a power of two, the odd one moves up
a level. Maleki, Musuvathi, Mytkowicz et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021,
https://arxiv.org/abs/2006.02924
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective.comm.arguments import arrays

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pycollective.comm.communicator import Communicator


def adasum(comm: Communicator, x: Any, out: Any = None) -> Any:
    """Collective: every rank gets the adaptive sum of all ranks' x, bitwise identical on all of them.

    Args:
        comm: of the participating ranks, any number.
        x: CPU array of floating-point elements, of any shape, the same on all ranks.
        out: the output, may be x; a new array of x's library by default.

    Raises:
        TypeError: the elements are not floating-point.
    """
    mine = arrays.flat(arrays.readable(x))
    if "float" not in str(mine.dtype):
        raise TypeError(f"adasum requires floating-point elements, not {mine.dtype}")
    wide = np.float64 if mine.dtype == np.float64 else np.float32
    result = arrays.new_like(x, arrays.shape_of(x)) if out is None else out
    level = list(comm.allgather(mine.astype(wide)).reshape(comm.size, -1))
    while len(level) > 1:
        pairs = [combine(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(level) & ~1 :]
    arrays.flat(arrays.writable(result))[...] = level[0].astype(mine.dtype)
    return result


def combine(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """The adaptive sum of two vectors. Dot products are taken in float64."""
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    dot, norm_a, norm_b = wide_a @ wide_b, wide_a @ wide_a, wide_b @ wide_b
    weight_a = 1 - dot / (2 * norm_a) if norm_a > 0 else 1.0
    weight_b = 1 - dot / (2 * norm_b) if norm_b > 0 else 1.0
    combined: NDArray[Any] = a * a.dtype.type(weight_a) + b * b.dtype.type(weight_b)
    return combined
