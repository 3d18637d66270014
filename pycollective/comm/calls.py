"""The shape of each collective call: what a rank puts in, what it gets, and how the buffer falls into blocks.

Arrays are cut and joined along their first axis ("rows"); a row is all that lies under one index of it. Where rows do
not divide evenly, the first ranks get one more, as numpy.array_split and Horovod have it.

Ranks must agree on the shape of a row wherever rows are cut or joined: the note of the call has it. Calls that work
element by element (allreduce, reduce, broadcast) compare the number of elements only, as MPI does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from pycollective import checks
from pycollective.comm.arrays import shape_of
from pycollective.schedule.collectives import NUMBERS

KIND = NUMBERS
"""The core's numbers of the collectives."""

_MOST = (1 << 31) - 1  # of what the core takes for a rank

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
        note: what else the ranks must agree on, in words for an error.
    """

    kind: int
    x: Any
    out: Any
    shape: Shape | None
    root: int = -1
    counts: tuple[int, ...] | None = None
    note: str = ""


def split_rows(rows: int, size: int) -> tuple[int, ...]:
    """Rows of each rank: as even as can be, the first ranks one more."""
    each, extra = divmod(rows, size)
    return tuple(each + (rank < extra) for rank in range(size))


def rank_number(rank: Any, name: str) -> int:
    """The number of a rank; whether there is such a rank is checked with the call."""
    return rank if type(rank) is int and -_MOST <= rank <= _MOST else checks.integer(rank, name, -_MOST, _MOST)


def numbers(counts: Any, name: str, size: int) -> list[int]:
    """One number for each rank, none below 0."""
    try:
        found = [index(count) for count in counts]
        if len(found) == size and min(found) >= 0:
            return found
    except Exception:  # what it was is told below
        pass
    return checks.integers(counts, name, 0, count=size)


def _rows(shape: Shape) -> tuple[int, Shape, int]:
    """(rows, shape of a row, elements of a row); a 0-d array is one row of one element."""
    if not shape:
        return 1, (), 1
    return shape[0], shape[1:], math.prod(shape[1:])


@functools.lru_cache(maxsize=1024)
def _note(row: Shape) -> str:
    """Ranks that cut or join rows of different shapes would get each other's elements in the wrong places."""
    return f"rows of shape {row}" if row else ""


def elementwise(name: str, x: Any, out: Any) -> Call:
    """A collective whose result has the shape of x on every rank."""
    return Call(KIND[name], x, out, shape_of(x))


def allreduce(x: Any, out: Any) -> Call:
    return elementwise("allreduce", x, out)


def barrier() -> Call:
    return Call(KIND["barrier"], _NOTHING, _NOTHING, None)


def broadcast(x: Any, root: int, out: Any) -> Call:
    root = rank_number(root, "root")
    return Call(KIND["broadcast"], x, out, shape_of(x if x is not None else out), root)


def reduce(x: Any, root: int, out: Any, rank: int) -> Call:
    root = rank_number(root, "root")
    mine = rank == root
    return Call(KIND["reduce"], x, out if mine else None, shape_of(x) if mine else None, root)


def reduce_scatter(x: Any, out: Any, rank: int, size: int) -> Call:
    rows, row, length = _rows(shape_of(x))
    parts = split_rows(rows, size)
    counts = tuple(part * length for part in parts)
    return Call(KIND["reduce_scatter"], x, out, (parts[rank], *row), counts=counts, note=_note(row))


def allgather(x: Any, out: Any, rows_of: Sequence[int]) -> Call:
    """`rows_of`: rows of each rank."""
    _, row, length = _rows(shape_of(x))
    counts = tuple(int(rows) * length for rows in rows_of)
    return Call(KIND["allgather"], x, out, (sum(rows_of), *row), counts=counts, note=_note(row))


def allgatherv(x: Any, out: Any, counts: Sequence[int], rank: int, size: int) -> Call:
    """`counts`: rows of each rank, of which this one knows its own."""
    shape = shape_of(x)
    rows = shape[0] if shape else 1
    counts = numbers(counts, "counts", size)
    if counts[rank] != rows:
        raise ValueError(f"counts {counts} do not fit: rank {rank} of {size} has {rows} rows")
    return allgather(x, out, counts)


def gather(x: Any, root: int, out: Any, rank: int, size: int) -> Call:
    root = rank_number(root, "root")
    rows, row, length = _rows(shape_of(x))
    mine = rank == root
    shape = (rows * size, *row) if mine else None
    return Call(KIND["gather"], x, out if mine else None, shape, root, (rows * length,) * size, _note(row))


def scatter(x: Any, root: int, out: Any, rank: int, size: int) -> Call:
    """Off the root `x` is only a template; without it `out` is, and every rank gets as many rows as it has."""
    root = rank_number(root, "root")
    if x is None:
        if rank == root or out is None:
            raise TypeError("scatter needs x at the root, and elsewhere x (of the root's shape) or out")
        shape = shape_of(out)
        return Call(KIND["scatter"], None, out, shape, root, (math.prod(shape),) * size, _note(shape[1:]))
    rows, row, length = _rows(shape_of(x))
    parts = split_rows(rows, size)
    counts = tuple(part * length for part in parts)
    return Call(KIND["scatter"], x, out, (parts[rank], *row), root, counts, _note(row))


def alltoall(x: Any, out: Any, rank: int, size: int, matrix: Sequence[Sequence[int]] | None = None) -> Call:
    """`matrix[s][d]`: rows from s to d; default: every rank cuts its rows evenly."""
    rows, row, length = _rows(shape_of(x))
    if matrix is None:
        matrix = [split_rows(rows, size)] * size
    counts = tuple(int(part) * length for sender in matrix for part in sender)
    mine = sum(int(sender[rank]) for sender in matrix)
    return Call(KIND["alltoall"], x, out, (mine, *row), counts=counts, note=_note(row))
