"""The shape of each collective call: what a rank puts in, what it gets, and how the buffer falls into blocks.

Arrays are cut and joined along their first axis ("rows"); a row is all that lies under one index of it. Where rows do
not divide evenly, the first ranks get one more, as numpy.array_split and Horovod have it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pycollective import _core
from pycollective.comm.arrays import shape_of

KIND = {name: number for number, name in enumerate(_core.collectives())}
"""The core's numbers of the collectives."""

Shape = tuple[int, ...]
_NOTHING = np.empty(0, np.uint8)


@dataclass(slots=True)
class Call:
    """One collective call as a rank sees it.

    Attributes:
        kind: the core's number of the collective.
        x, out: arrays, or None where this rank has none.
        shape: of the result, where `out` is to be made; None where this rank gets nothing.
        root: -1 where there is none.
        counts: elements of each block: one a rank, or for alltoall size*size, by sender and then receiver.
    """

    kind: int
    x: Any
    out: Any
    shape: Shape | None
    root: int = -1
    counts: tuple[int, ...] | None = None


def split_rows(rows: int, size: int) -> tuple[int, ...]:
    """Rows of each rank: as even as can be, the first ranks one more."""
    each, extra = divmod(rows, size)
    return tuple(each + (rank < extra) for rank in range(size))


def _rows(shape: Shape) -> tuple[int, Shape, int]:
    """(rows, shape of a row, elements of a row); a 0-d array is one row of one element."""
    if not shape:
        return 1, (), 1
    return shape[0], shape[1:], math.prod(shape[1:])


def allreduce(x: Any, out: Any) -> Call:
    return Call(KIND["allreduce"], x, out, shape_of(x))


def barrier() -> Call:
    return Call(KIND["barrier"], _NOTHING, _NOTHING, None)


def broadcast(x: Any, root: int, out: Any) -> Call:
    return Call(KIND["broadcast"], x, out, shape_of(x if x is not None else out), root)


def reduce(x: Any, root: int, out: Any, rank: int) -> Call:
    mine = rank == root
    return Call(KIND["reduce"], x, out if mine else None, shape_of(x) if mine else None, root)


def reduce_scatter(x: Any, out: Any, rank: int, size: int) -> Call:
    rows, row, length = _rows(shape_of(x))
    parts = split_rows(rows, size)
    counts = tuple(part * length for part in parts)
    return Call(KIND["reduce_scatter"], x, out, (parts[rank], *row), counts=counts)


def allgather(x: Any, out: Any, rows_of: Sequence[int]) -> Call:
    """`rows_of`: rows of each rank."""
    _, row, length = _rows(shape_of(x))
    counts = tuple(int(rows) * length for rows in rows_of)
    return Call(KIND["allgather"], x, out, (sum(rows_of), *row), counts=counts)


def allgatherv(x: Any, out: Any, counts: Sequence[int], rank: int, size: int) -> Call:
    """`counts`: rows of each rank, of which this one knows its own."""
    shape = shape_of(x)
    rows = shape[0] if shape else 1
    if len(counts) != size or counts[rank] != rows or min(counts) < 0:
        raise ValueError(f"counts {list(counts)} do not fit: rank {rank} of {size} has {rows} rows")
    return allgather(x, out, counts)


def gather(x: Any, root: int, out: Any, rank: int, size: int) -> Call:
    rows, row, length = _rows(shape_of(x))
    mine = rank == root
    shape = (rows * size, *row) if mine else None
    return Call(KIND["gather"], x, out if mine else None, shape, root, (rows * length,) * size)


def scatter(x: Any, root: int, out: Any, rank: int, size: int) -> Call:
    """Off the root `x` is only a template; without it every rank gets as much as `out` holds."""
    if x is None:
        if rank == root or out is None:
            raise TypeError("scatter needs x at the root, and elsewhere x (of the root's shape) or out")
        shape = shape_of(out)
        return Call(KIND["scatter"], None, out, shape, root, (math.prod(shape),) * size)
    rows, row, length = _rows(shape_of(x))
    parts = split_rows(rows, size)
    counts = tuple(part * length for part in parts)
    return Call(KIND["scatter"], x, out, (parts[rank], *row), root, counts)


def alltoall(x: Any, out: Any, rank: int, size: int, matrix: Sequence[Sequence[int]] | None = None) -> Call:
    """`matrix[s][d]`: rows from s to d; default: every rank cuts its rows evenly."""
    rows, row, length = _rows(shape_of(x))
    if matrix is None:
        matrix = [split_rows(rows, size)] * size
    counts = tuple(int(part) * length for sender in matrix for part in sender)
    mine = sum(int(sender[rank]) for sender in matrix)
    return Call(KIND["alltoall"], x, out, (mine, *row), counts=counts)
