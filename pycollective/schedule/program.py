"""The language that topologies are written in: sequential statements over all ranks' chunks.

`p[r, c]` names chunk c of rank r; ranks are taken modulo `p.size`.

    p[r, c] = p[q, c]                              copy
    p[r, c] += p[q, c]                             the old p[r, c], then p[q, c]
    p[r, c] = p.sum(p[q, c] for q in p.ranks)      reduce, left to right in the order given
    p[p.ranks, c] = p[q, c]                        several destinations, simultaneously
    p[r, c] = p.copy(p[q, c], at=q)                executed by rank q: a push

"sum" stands for the operator of the call. A statement without `at` is executed by the rank that it writes to (a
pull; with several destinations each executes it for itself), one with `at` by that rank, which writes all the
destinations. The right side is read completely before anything is written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from types import FrameType
from typing import SupportsIndex

from pycollective.errors import ProgramError
from pycollective.schedule.collectives import collective_named

Ranks = SupportsIndex | Iterable[SupportsIndex]


class Place:
    """Chunk `chunk` of rank `rank`, by name: a statement reads whatever the place holds when it is executed."""

    __slots__ = ("chunk", "rank")

    def __init__(self, rank: int, chunk: int) -> None:
        self.rank = rank
        self.chunk = chunk

    def __iadd__(self, other: Place | Expression) -> Expression:
        if isinstance(other, Place):
            return Expression((self, other), None)
        if isinstance(other, Expression):
            return Expression((self, *other.places), other.at)
        raise ProgramError(f"{_caller(1)}: += takes p[r, c] or p.sum(...), not {type(other).__name__}")

    def __repr__(self) -> str:
        return f"p[{self.rank}, {self.chunk}]"


class Expression:
    """The right side of a statement: the places to combine, left to right, and who executes it."""

    __slots__ = ("at", "places")

    def __init__(self, places: tuple[Place, ...], at: int | None) -> None:
        self.places = places
        self.at = at


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: the `destinations` (ranks) get the combined `sources` (ranks) of `chunk`.

    `at` is the rank that executes it, or None where each destination does. `line` is "file:line" of the user's code.
    """

    chunk: int
    destinations: tuple[int, ...]
    sources: tuple[int, ...]
    at: int | None
    line: str


class Program:
    """The statements of one collective on `size` ranks, recorded as a topology's method runs.

    Attributes:
        collective: the collective's name.
        size: the number of ranks.
        ranks: range(size).
        root: the root, or None where the collective has none.
        pipeline: into how many chunks a program that pipelines should cut the buffer; 1, as the executor's tiles
            pipeline whatever moves in one direction.
        statements: what has been recorded.

    Raises:
        ProgramError: on a rule broken, with the file and line of the statement.
    """

    def __init__(self, collective: str, size: int, root: int | None = None) -> None:
        self.collective = collective
        self.size = size
        self.ranks = range(size)
        self.root = root
        self.pipeline = 1
        self.statements: list[Statement] = []
        self._required = collective_named(collective).required_chunks(size)
        self._chunks: int | None = None

    @property
    def chunk_count(self) -> int:
        """The number of chunks declared; a program without any statement need not declare it."""
        return self._chunks or self._required or 1

    def chunks(self, count: int) -> range:
        """Cut the buffer in `count` chunks and iterate over them; the same count in every call."""
        if count < 1:
            raise ProgramError(f"{_caller()}: p.chunks({count}): at least one chunk is needed")
        if self._required not in (None, count):
            rule = f"{self.collective} on {self.size} ranks has {self._required} chunks"
            raise ProgramError(f"{_caller()}: p.chunks({count}): {rule}")
        if self._chunks not in (None, count):
            raise ProgramError(f"{_caller()}: p.chunks({count}): the buffer is already cut in {self._chunks}")
        self._chunks = count
        return range(count)

    def block(self, sender: int, receiver: int) -> int:
        """The chunk of an alltoall that goes from `sender` to `receiver`, with p.chunks(p.size ** 2)."""
        return sender % self.size * self.size + receiver % self.size

    def sum(self, places: Iterable[Place], *, at: int | None = None) -> Expression:
        """The places combined by the call's operator, left to right; executed by rank `at`, where given."""
        operands = tuple(places)
        if not operands:
            raise ProgramError(f"{_caller()}: p.sum() of nothing")
        return Expression(operands, at)

    def copy(self, place: Place, *, at: int | None = None) -> Expression:
        """The place as it is; executed by rank `at`, where given."""
        return Expression((place,), at)

    def __getitem__(self, key: tuple[Ranks, int]) -> Place:
        ranks, chunk = key
        try:
            rank = ranks.__index__()  # type: ignore[union-attr]
        except AttributeError:
            hint = "one rank is read at a time; with several destinations write p[ranks, c] = p.sum(...)"
            raise ProgramError(f"{_caller()}: p[{ranks!r}, {chunk}]: {hint}") from None
        if self._chunks is None or not 0 <= chunk < self._chunks:
            self._refuse_chunk(chunk, sys._getframe(1))
        return Place(rank % self.size, chunk)

    def __setitem__(self, key: tuple[Ranks, int], value: Place | Expression) -> None:
        ranks, chunk = key
        frame = sys._getframe(1)
        if self._chunks is None or not 0 <= chunk < self._chunks:
            self._refuse_chunk(chunk, frame)
        destinations: tuple[int, ...]
        if hasattr(ranks, "__index__"):
            destinations = (index(ranks) % self.size,)
        else:
            destinations = tuple(dict.fromkeys(index(rank) % self.size for rank in ranks))
        if isinstance(value, Place):
            places, at = (value,), None
        elif isinstance(value, Expression):
            places, at = value.places, value.at
        else:
            what = f"p[..., {chunk}] = {type(value).__name__}"
            raise ProgramError(f"{_line(frame)}: {what}: a statement assigns p[r, c], p.sum(...) or p.copy(...)")
        for place in places:
            if not isinstance(place, Place) or place.chunk != chunk:
                raise ProgramError(f"{_line(frame)}: {place!r} in a statement on chunk {chunk}: one chunk only")
        if not destinations:  # as below a leaf of a tree
            return
        sources = tuple(place.rank for place in places)
        executor = None if at is None else at % self.size
        self.statements.append(Statement(chunk, destinations, sources, executor, _line(frame)))

    def _refuse_chunk(self, chunk: int, frame: FrameType) -> None:
        if self._chunks is None:
            raise ProgramError(f"{_line(frame)}: chunk {chunk} before p.chunks(k) has said how many there are")
        raise ProgramError(f"{_line(frame)}: chunk {chunk} of {self._chunks}")


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _caller(depth: int = 1) -> str:
    return _line(sys._getframe(depth + 1))
