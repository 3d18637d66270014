"""A list of float32 arrays, each rank's inputs, and their expected sum over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ..peers import Array
from .shapes import Shape

__all__ = ["Allocate", "count_wrong", "fill", "laid_out", "plain", "separate"]

Allocate = Callable[[int], Array]
"""Elements -> a flat float32 array."""

_PERIOD = 1009
"""Prime, so that it coincides with no boundary of a tile or chunk."""


def plain(count: int) -> Array:
    """Ordinary memory with every page touched."""
    array = np.empty(count, np.float32)
    array[:] = 0
    return array


def laid_out(shapes: Sequence[Shape], allocate: Allocate) -> list[Array]:
    """Arrays one after the other in one allocation, like gradients in a bucket."""
    counts = [prod(shape) for shape in shapes]
    flat = allocate(sum(counts))
    ends = np.cumsum(counts)
    return [flat[end - count : end].reshape(shape) for count, end, shape in zip(counts, ends, shapes, strict=True)]


def separate(shapes: Sequence[Shape]) -> list[Array]:
    """Arrays with one allocation each, like gradients in a model."""
    return [plain(prod(shape)).reshape(shape) for shape in shapes]


def _values(index: int, rank: int) -> Array:
    """One period of a rank's input in tensor number ``index``: integers, so that sums are exact."""
    values: Array = ((np.arange(_PERIOD) * 7 + index * 13 + rank * 31) % 257).astype(np.float32)
    return values


def fill(arrays: Sequence[Array], rank: int) -> None:
    """Fill each array with the rank's input."""
    for index, array in enumerate(arrays):
        flat = array.reshape(-1)
        flat[:] = np.resize(_values(index, rank), flat.size)


def count_wrong(results: Sequence[Any], ranks: int) -> int:
    """Number of elements that are not the ranks' sum; results of any library that NumPy can view."""
    wrong = 0
    for index, result in enumerate(results):
        flat = np.asarray(result).reshape(-1)
        right = sum(_values(index, rank) for rank in range(ranks))
        wrong += int(np.count_nonzero(flat != np.resize(right, flat.size)))
    return wrong
