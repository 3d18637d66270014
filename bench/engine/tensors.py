"""A list of float32 arrays, what each rank puts into them, and what their sum over the ranks must be."""

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
"""Prime, so that no boundary of a tile or chunk falls together with it."""


def plain(count: int) -> Array:
    """Ordinary memory; every page exists."""
    array = np.empty(count, np.float32)
    array[:] = 0
    return array


def laid_out(shapes: Sequence[Shape], allocate: Allocate) -> list[Array]:
    """Arrays one behind the other in one allocation, as gradients are in a bucket."""
    counts = [prod(shape) for shape in shapes]
    whole = allocate(sum(counts))
    ends = np.cumsum(counts)
    return [whole[end - count : end].reshape(shape) for count, end, shape in zip(counts, ends, shapes, strict=True)]


def separate(shapes: Sequence[Shape]) -> list[Array]:
    """Arrays with an allocation each, as gradients are in a model."""
    return [plain(prod(shape)).reshape(shape) for shape in shapes]


def _values(index: int, rank: int) -> Array:
    """One period of a rank's input in tensor number ``index``: integers, so that sums are exact."""
    values: Array = ((np.arange(_PERIOD) * 7 + index * 13 + rank * 31) % 257).astype(np.float32)
    return values


def fill(arrays: Sequence[Array], rank: int) -> None:
    """Each array's share of the rank's input."""
    for index, array in enumerate(arrays):
        flat = array.reshape(-1)
        flat[:] = np.resize(_values(index, rank), flat.size)


def count_wrong(results: Sequence[Any], ranks: int) -> int:
    """Elements that are not the ranks' sum; the results may be of any library that NumPy can look into."""
    wrong = 0
    for index, result in enumerate(results):
        flat = np.asarray(result).reshape(-1)
        right = sum(_values(index, rank) for rank in range(ranks))
        wrong += int(np.count_nonzero(flat != np.resize(right, flat.size)))
    return wrong
