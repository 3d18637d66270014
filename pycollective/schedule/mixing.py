"""Mixing matrices: which ranks' arrays a call of `mix` adds, with which weights.

A *graph* gives, for each rank, the ranks that it reads and their weights. Evaluated for all ranks at one step it is a
matrix, one row for each rank; a program of one `p.mix` statement for each row computes it.
"""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from pycollective import checks
from pycollective.schedule.collectives import COLLECTIVES
from pycollective.schedule.compiler.compiler import compile_program
from pycollective.schedule.compiler.schedule import Placement, Schedule
from pycollective.schedule.language.program import MOST_RANKS, Program

Row = tuple[tuple[int, float], ...]
"""(source, weight), by ascending source."""
Graph = Callable[[int, int, int], Mapping[int, float]]
"""graph(rank, size, step) -> {source: weight}, the rank's own entry included; the same function on all ranks."""

(_WEIGHTED,) = (name for name, row in COLLECTIVES.items() if row.weighted)
_ENTRY = struct.Struct("=qd")

TOLERANCE = 1e-6
"""How far the sum of a rank's weights may be from 1: weights may have been computed in float32."""


@dataclass(frozen=True)
class MixingMatrix:
    """A graph, evaluated at one step.

    Attributes:
        rows: for each rank, its sources and their weights.
        name: of the graph, for messages.
    """

    rows: tuple[Row, ...]
    name: str = "graph"

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.rows)

    @functools.cached_property
    def column_sums(self) -> tuple[float, ...]:
        """Sum for each rank the weights with which it is read."""
        sums = [0.0] * self.size
        for row in self.rows:
            for source, weight in row:
                sums[source] += weight
        return tuple(sums)

    @functools.cached_property
    def digest(self) -> int:
        """64-bit digest of all rows."""
        found = hashlib.blake2b(digest_size=8)
        for row in self.rows:
            found.update(struct.pack(f"=q{len(row)}q{len(row)}d", len(row), *(s for s, _ in row), *(w for _, w in row)))
        return int.from_bytes(found.digest(), "little")

    @functools.cached_property
    def label(self) -> str:
        """A description: "ring, edges 3f9c02d1551de702"; the digits differ if a weight of any rank does."""
        return f"{self.name}, edges {self.digest:016x}"

    def __str__(self) -> str:
        return self.label

    def program(self, hosts: tuple[int, ...] = ()) -> Program:
        """The program of one step; `hosts` as in `compile`."""
        made = Program(_WEIGHTED, self.size, hosts=hosts)
        for c in made.chunks(1):
            for rank, row in enumerate(self.rows):
                made[rank, c] = made.mix(dict(row))
        return made

    def schedule(self, placement: Placement = Placement.STAGED, hosts: tuple[int, ...] = ()) -> Schedule:
        """The schedule of one step, `hosts` as in `compile`; remembered."""
        return _schedule(self, placement, hosts)

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.digest, self.name))


@functools.lru_cache(maxsize=1024)
def _schedule(matrix: MixingMatrix, placement: Placement, hosts: tuple[int, ...]) -> Schedule:
    return compile_program(matrix.program(hosts), placement, topology=matrix.label)


def evaluate(graph: Graph, size: int, step: int, normalised: bool = True) -> MixingMatrix:
    """The matrix of a graph at a step.

    Args:
        graph: see `Graph`.
        size: the number of ranks.
        step: passed to the graph.
        normalised: every rank's weights must sum to 1.

    Raises:
        TypeError, ValueError: the graph's result for a rank is wrong: see `row_of`.
    """
    if not callable(graph):
        checks.refuse_type("graph", "a function of (rank, size, step), or a mapping {source: weight}", graph)
    size = checks.integer(size, "size", 1, MOST_RANKS)
    name = name_of(graph)
    rows = tuple(row_of(graph(rank, size, step), rank, size, normalised, name) for rank in range(size))
    return matrix_of(rows, name)


def exchange(row: Row, allgather: Callable[[bytes, str], Sequence[bytes]]) -> MixingMatrix:
    """Collective: the matrix of all ranks' rows.

    Args:
        row: this rank's, checked.
        allgather: returns all ranks' bytes, in rank order; its second argument names the purpose.
    """
    mine = b"".join(_ENTRY.pack(source, weight) for source, weight in row)
    received = allgather(mine, "the rows of mix")
    return matrix_of(tuple(tuple(_ENTRY.iter_unpack(theirs)) for theirs in received), "of mappings")


@functools.lru_cache(maxsize=1024)
def matrix_of(rows: tuple[Row, ...], name: str) -> MixingMatrix:
    """The matrix with these rows: one object for equal rows, by which plans are remembered."""
    return MixingMatrix(rows, name)


def name_of(graph: Any) -> str:
    """The name of a graph, for messages."""
    return str(getattr(graph, "name", None) or getattr(graph, "__name__", None) or type(graph).__name__)


def row_of(weights: Mapping[int, float], rank: int, size: int, normalised: bool, name: str) -> Row:
    """One rank's row, checked.

    Raises:
        TypeError: not a mapping from integers to real numbers.
        ValueError: a source is not a rank, the rank's own entry is missing, a weight is infinite or NaN, or the weights
            do not sum to 1 although they should.
    """
    where = f"graph {name}: rank {rank} of {size}"
    try:
        row = tuple(sorted((index(source), float(weight)) for source, weight in weights.items()))
    except (AttributeError, TypeError, ValueError):
        raise TypeError(f"{where}: {{source: weight}} is needed, not {checks.brief(weights)}") from None
    total, own = 0.0, False
    for source, weight in row:
        if not 0 <= source < size:
            raise ValueError(f"{where}: source {source} is not a rank")
        if not math.isfinite(weight):
            raise ValueError(f"{where}: the weight of rank {source} is {weight}")
        total += weight
        own = own or source == rank
    if not own:
        raise ValueError(f"{where}: it has no entry of its own: {dict(row)}; write {rank}: 0.0 if it keeps nothing")
    if normalised and abs(total - 1.0) > TOLERANCE:
        raise ValueError(f"{where}: the weights sum to {total!r} instead of 1; pass normalised=False if that is meant")
    return row
