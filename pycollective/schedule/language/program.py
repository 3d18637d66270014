"""The topology language: sequential statements over all ranks' chunks.

`p[r, c]` denotes chunk c of rank r; ranks are taken modulo `p.size`.

    p[r, c] = p[q, c]                              copy
    p[r, c] += p[q, c]                             the old p[r, c], then p[q, c]
    p[r, c] = p.sum(p[q, c] for q in p.ranks)      reduce, left to right in the order given
    p[p.ranks, c] = p[q, c]                        several destinations, simultaneously
    p[r, c] = p.copy(p[q, c], at=q)                executed by rank q: a push
    p[r, c] = p.mix({q: weight, ...})              the weighted sum of the ranks' chunk, in programs of `mix`

"sum" stands for the operator of the call. A statement without `at` is executed by the rank that it writes to (a
pull; with several destinations each executes it for itself), one with `at` by that rank, which writes all the
destinations. The right side is read completely before anything is written.

Consecutive `p.mix` statements form one step, until one writes a place for the second time: all of a step read the
values before it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import index
from types import FrameType
from typing import NoReturn, SupportsIndex, TypeVar

from pycollective import checks, notebook
from pycollective.errors import ProgramError
from pycollective.schedule.collectives import collective_named
from pycollective.schedule.language.hosts import groups, numbered

MOST_RANKS = 1 << 16
"""Ranks of a program: beyond this, compiling or simulating would certainly take too long."""
MOST_PLACES = 1 << 22
"""Places that a program may read and write in total: larger ones are rejected before memory runs out."""

Ranks = SupportsIndex | Iterable[SupportsIndex]

_Rank = TypeVar("_Rank")


@dataclass(eq=False, slots=True)
class Expression:
    """The right side of a statement: ranks whose `chunk` is combined, left to right, and the executing rank.

    `p[r, c]` by itself is an expression of one rank. It is a name: the statement reads the place's content at that
    point. One with `weights` has the chunk of the place that it is assigned to.
    """

    chunk: int
    sources: tuple[int, ...]
    at: int | None = None
    weights: tuple[float, ...] = ()

    def __iadd__(self, other: Expression) -> Expression:
        if not isinstance(other, Expression) or other.chunk != self.chunk:
            raise ProgramError(f"{_caller()}: {self!r} += {other!r}: += takes p[r, {self.chunk}] or a p.sum of such")
        return Expression(self.chunk, self.sources + other.sources, other.at)

    def __add__(self, other: Expression) -> Expression:
        raise ProgramError(f"{_caller()}: {self!r} + {other!r}: write p.sum((p[r, c], p[q, c])), or p[r, c] += p[q, c]")

    def __radd__(self, other: object) -> NoReturn:  # called first by Python's sum()
        raise ProgramError(f"{_caller()}: {other!r} + {self!r}: write p.sum(p[q, c] for q in ...)")

    def __repr__(self) -> str:
        if self.weights:
            return f"p.mix({dict(zip(self.sources, self.weights, strict=True))})"
        return " + ".join(f"p[{rank}, {self.chunk}]" for rank in self.sources)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: the `destinations` (ranks) get the combined `sources` (ranks) of `chunk`.

    `at` is the rank that executes it, or None if each destination does. `line` is "file:line" of the user's code.
    `weights`: of a `p.mix`, the factor of each source.
    """

    chunk: int
    destinations: tuple[int, ...]
    sources: tuple[int, ...]
    at: int | None
    line: str
    weights: tuple[float, ...] = ()


class Program:
    """The statements of one collective on `size` ranks, recorded while a topology's method runs.

    Attributes:
        collective: the collective's name.
        size: the number of ranks.
        ranks: range(size).
        root: the root, or None if the collective has none.
        hosts: the ranks of each host, ascending; one tuple of all ranks if they share a host.
        host_of: the host number of each rank; empty if they share a host.
        pipeline: the number of chunks into which a pipelining program should divide the buffer; 1, as the executor's
            tiles pipeline any data that moves in one direction.
        statements: the recorded statements.

    Raises:
        ProgramError: a statement breaks a rule; the message has its file and line. Or more than MOST_PLACES places are
            read and written.
        TypeError, ValueError: size is not an integer up to MOST_RANKS, root is not a rank, or hosts are not a number
            for each rank.
    """

    def __init__(
        self, collective: str, size: int, root: int | None = None, hosts: Iterable[SupportsIndex] = ()
    ) -> None:
        row = collective_named(collective)
        self._required, self._weighted = row.required_chunks(size), row.weighted
        self.collective = collective
        self.size = size = checks.integer(size, "size", 0, MOST_RANKS)
        root = None if root is None else checks.integer(root, "root", 0, max(0, size - 1))
        self.ranks = range(size)
        self.root = root
        self.host_of = numbered(hosts, size)
        self.hosts = groups(self.host_of, size)
        self.pipeline = 1
        self.statements: list[Statement] = []
        self._chunks: int | None = None
        self._written = 0

    def _repr_html_(self) -> str | None:
        return notebook.html(self)

    @property
    def chunk_count(self) -> int:
        """The declared number of chunks; a program without statements need not declare it."""
        return self._chunks or self._required or 1

    def chunks(self, count: SupportsIndex) -> range:
        """Divide the buffer into `count` chunks and iterate over them; the same count in every call."""
        try:
            count = index(count)
        except TypeError:
            raise ProgramError(f"{_caller()}: p.chunks({count!r}): the number of chunks is an integer") from None
        if count < 1:
            raise ProgramError(f"{_caller()}: p.chunks({count}): at least one chunk is needed")
        if count > MOST_PLACES:
            raise ProgramError(f"{_caller()}: p.chunks({count}): at most {MOST_PLACES} chunks can be compiled")
        if self._required not in (None, count):
            rule = f"{self.collective} on {self.size} ranks has {self._required} chunks"
            raise ProgramError(f"{_caller()}: p.chunks({count}): {rule}")
        if self._chunks not in (None, count):
            raise ProgramError(f"{_caller()}: p.chunks({count}): the buffer is already cut in {self._chunks}")
        self._chunks = count
        return range(count)

    def block(self, sender: int, receiver: int) -> int:
        """The chunk of an alltoall that goes from `sender` to `receiver`, with p.chunks(p.size ** 2)."""
        try:
            return index(sender) % self.size * self.size + index(receiver) % self.size
        except TypeError:
            raise ProgramError(f"{_caller()}: p.block({sender!r}, {receiver!r}): ranks are integers") from None

    def sum(self, places: Iterable[Expression], *, at: SupportsIndex | None = None) -> Expression:
        """The places combined by the call's operator, left to right; executed by rank `at`, if given."""
        try:
            operands = tuple(places)
        except TypeError:  # a single place, for example
            raise ProgramError(f"{_caller()}: p.sum({places!r}): write p.sum(p[q, c] for q in ...)") from None
        if not operands:
            raise ProgramError(f"{_caller()}: p.sum() of nothing")
        for place in operands:
            if not isinstance(place, Expression):
                raise ProgramError(f"{_caller()}: p.sum: {place!r} is not a place p[r, c]")
            if place.chunk != operands[0].chunk or len(place.sources) != 1:
                raise ProgramError(f"{_caller()}: p.sum: {place!r} and {operands[0]!r}: places of one chunk only")
        sources = tuple(place.sources[0] for place in operands)
        return Expression(operands[0].chunk, sources, self._executor(at, sys._getframe(1)))

    def copy(self, place: Expression, *, at: SupportsIndex | None = None) -> Expression:
        """The content of the place; executed by rank `at`, if given."""
        if not isinstance(place, Expression):
            raise ProgramError(f"{_caller()}: p.copy: {place!r} is not a place p[r, c]")
        return Expression(place.chunk, place.sources, self._executor(at, sys._getframe(1)))

    def mix(self, weights: Mapping[SupportsIndex, float]) -> Expression:
        """The sum of the ranks' chunk, each times its weight, in ascending order of the ranks.

        Args:
            weights: for each rank, modulo `size`, its weight; those of the same rank are added.
        """
        frame = sys._getframe(1)
        if not self._weighted:
            raise ProgramError(f"{_line(frame)}: p.mix() is for programs of mix, not of {self.collective}")
        found: dict[int, float] = {}
        try:
            for rank, weight in weights.items():
                source = index(rank) % self.size
                found[source] = found.get(source, 0.0) + float(weight)
        except (AttributeError, TypeError, ValueError):
            rule = "it takes a mapping from ranks, integers, to weights, numbers"
            raise ProgramError(f"{_line(frame)}: p.mix({checks.brief(weights)}): {rule}") from None
        if not found:
            raise ProgramError(f"{_line(frame)}: p.mix() of nothing")
        sources = tuple(sorted(found))
        return Expression(-1, sources, None, tuple(found[source] for source in sources))

    def __getitem__(self, key: tuple[SupportsIndex, SupportsIndex]) -> Expression:
        frame = sys._getframe(1)
        rank, chunk = self._place(key, frame)
        try:
            return Expression(chunk, (index(rank) % self.size,))
        except TypeError:
            hint = "one rank is read at a time; for several destinations write p[ranks, c] = p.sum(...)"
            raise ProgramError(f"{_line(frame)}: p[{rank!r}, {chunk}]: {hint}") from None

    def __setitem__(self, key: tuple[Ranks, SupportsIndex], value: Expression) -> None:
        frame = sys._getframe(1)
        ranks, chunk = self._place(key, frame)
        if not isinstance(value, Expression) or (value.chunk != chunk and not value.weights):
            rule = f"a statement on chunk {chunk} assigns p[r, {chunk}], p.sum(...) or p.copy(...) of such"
            raise ProgramError(f"{_line(frame)}: p[{ranks!r}, {chunk}] = {value!r}: {rule}")
        try:
            destinations = self._destinations(ranks)
        except TypeError as error:
            raise ProgramError(f"{_line(frame)}: p[{ranks!r}, {chunk}]: ranks are integers: {error}") from error
        if self._weighted and len(value.sources) > 1 and not value.weights:
            raise ProgramError(f"{_line(frame)}: p[{ranks!r}, {chunk}] = {value!r}: a program of mix adds by p.mix()")
        if destinations:  # none, e.g. below a leaf of a tree
            self.record(Statement(chunk, destinations, value.sources, value.at, _line(frame), value.weights))

    def record(self, statement: Statement) -> None:
        """Append a statement; a reader that need not keep all of them overrides it."""
        self._written += len(statement.sources) + len(statement.destinations)
        if self._written > MOST_PLACES:
            raise ProgramError(
                f"{statement.line}: {self.collective} on {self.size} ranks is too large to compile: its first "
                f"{len(self.statements) + 1} statements read and write more than {MOST_PLACES} places"
            )
        self.statements.append(statement)

    def _place(self, key: tuple[_Rank, SupportsIndex], frame: FrameType) -> tuple[_Rank, int]:
        """The values between the brackets of p[rank or ranks, chunk], with the chunk checked."""
        try:
            ranks, number = key
            chunk = index(number)
        except (TypeError, ValueError):
            inside = ", ".join(map(checks.brief, key)) if isinstance(key, tuple) else checks.brief(key)
            raise ProgramError(f"{_line(frame)}: p[{inside}]: a place is p[rank, chunk], both integers") from None
        if self._chunks is None:
            raise ProgramError(f"{_line(frame)}: chunk {chunk} is used before p.chunks(k) has declared their number")
        if not 0 <= chunk < self._chunks:
            raise ProgramError(f"{_line(frame)}: chunk {chunk} of {self._chunks}")
        return ranks, chunk

    def _destinations(self, ranks: Ranks) -> tuple[int, ...]:
        try:
            return (index(ranks) % self.size,)  # type: ignore[arg-type]
        except TypeError:  # several; an array of NumPy has an __index__ too
            return tuple(dict.fromkeys(index(rank) % self.size for rank in ranks))  # type: ignore[union-attr]

    def _executor(self, at: SupportsIndex | None, frame: FrameType) -> int | None:
        try:
            return None if at is None else index(at) % self.size
        except TypeError:
            raise ProgramError(f"{_line(frame)}: at={at!r}: a statement is executed by one rank, an integer") from None


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _caller() -> str:
    """The line that called the calling function."""
    return _line(sys._getframe(2))
