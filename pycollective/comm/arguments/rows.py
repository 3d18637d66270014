"""How collectives cut and join arrays: along their first axis, by rows.

A row is everything under one index of the first axis. If rows do not divide evenly, the first ranks get one more, as in
numpy.array_split and Horovod.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from pycollective.schedule.collectives import CALLS

Shape = tuple[int, ...]


class Cut(NamedTuple):
    """How one call cuts its arrays, and a note on which the ranks must agree.

    Ranks that cut or join rows of different shapes would get each other's elements in the wrong places.
    """

    counts: tuple[int, ...]  # elements of each block: one per rank, or one per pair of ranks, by sender, then receiver
    shape: Shape  # of this rank's result, if it gets one
    note: str


def cut(collective: str, shape: Shape, rank: int, size: int) -> Cut:
    """The cut of a collective in blocks with this input shape."""
    row = CALLS[collective]
    rows, cell, length = rows_of(shape)
    if row.packed_input:
        return Cut((rows * length,) * size, (rows * size, *cell), note_of(cell))
    parts = split_rows(rows, size)
    counts = tuple(part * length for part in parts)
    if row.split == "pairs":
        return Cut(counts * size, (parts[rank] * size, *cell), note_of(cell))
    return Cut(counts, (parts[rank], *cell), note_of(cell))


def split_rows(rows: int, size: int) -> tuple[int, ...]:
    """Rows of each rank: as even as possible, the first ranks get one more."""
    each, extra = divmod(rows, size)
    return (each + 1,) * extra + (each,) * (size - extra)


def rows_of(shape: Shape) -> tuple[int, Shape, int]:
    """(rows, shape of a row, elements of a row); a 0-d array is one row of one element."""
    if not shape:
        return 1, (), 1
    return shape[0], shape[1:], math.prod(shape[1:])


@functools.lru_cache(maxsize=1024)
def note_of(cell: Shape) -> str:
    """See Cut; empty for rows of one element."""
    return f"rows of shape {cell}" if cell else ""
