"""First pass of the compiler: from statements to values.

A value is produced by one execution of a statement (or held by a rank at the start). From here on no name changes its
meaning: an execution reads values, and a value knows its readers and its final places.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pycollective.errors import ProgramError
from pycollective.schedule.collectives import COLLECTIVES
from pycollective.schedule.language.program import Program, Statement


@dataclass(eq=False, repr=False, slots=True)
class Value:
    """The content of a chunk, produced by `rank` at one point of the program.

    Attributes:
        rank: the rank that executes it, or holds it at the start.
        chunk: the chunk whose content it is.
        sources: the (value, name) pairs that are combined; name is the rank under which the program reads it. Empty for
            initial values.
        weights: the sources' factors; empty: they are combined by the call's operator.
        destinations: the ranks that the program writes it to.
        origin: the same object in a value and its copies, and the copies of these.
        raw: one rank's unchanged contribution, or a copy of it.
        full: it holds every rank's contribution.
        complete: its execution produces a result and nothing else: factors on results are applied here. In a reducing
            collective whose results hold all contributions: it is full, and no source is.
        reads: for each execution that is needed and reads it, the executing rank and the name.
        finals: the ranks whose result it is.
        line: "file:line" of the statement that produces it; empty for initial values.
    """

    rank: int
    chunk: int
    sources: tuple[tuple[Value, int], ...]
    destinations: tuple[int, ...]
    full: bool
    complete: bool
    line: str = ""
    weights: tuple[float, ...] = ()
    raw: bool = field(init=False)
    origin: object = field(init=False)
    reads: list[tuple[int, int]] = field(default_factory=list, init=False)
    finals: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        copies = len(self.sources) == 1 and not self.weights
        self.raw = not self.sources or (copies and self.sources[0][0].raw and not self.complete)
        self.origin = self.sources[0][0].origin if copies else object()

    @property
    def needed(self) -> bool:
        """Whether an execution reads it, or it is a result."""
        return bool(self.reads or self.finals)


@dataclass(frozen=True, slots=True)
class ValueGraph:
    """A program in terms of values.

    Attributes:
        initial: initial values, by (rank, chunk).
        groups: for each statement, in program order, its executions that are needed. Those of one group are
            simultaneous: all read before any writes.
    """

    initial: dict[tuple[int, int], Value]
    groups: list[list[Value]]


def build_values(program: Program, pull_copies: bool) -> ValueGraph:
    """Run the program over values and keep those needed for the results.

    Args:
        program: a traced program.
        pull_copies: outputs are private, so pushes are impossible: a copy that the program pushes with `at` is made by
            each destination directly from the source's location, instead of being stored again on the way.

    Raises:
        ProgramError: a statement reads a place that holds nothing.
    """
    collective = COLLECTIVES[program.collective]
    size, root = program.size, program.root or 0
    masks = [0] * program.chunk_count  # for each chunk, the ranks that contribute to it
    initial: dict[tuple[int, int], Value] = {}
    for chunk in range(program.chunk_count):
        holders = [rank for rank in range(size) if collective.starts(rank, chunk, size, root)]
        masks[chunk] = sum(1 << rank for rank in holders)
        for rank in holders:
            initial[rank, chunk] = Value(rank, chunk, (), (rank,), len(holders) == 1, False)

    current = dict(initial)
    holds = {value: 1 << value.rank for value in initial.values()}  # the contributions in each value
    groups: list[list[Value]] = []
    by_fullness = collective.reduces and collective.prefix == "none"
    for together in steps_of(program.statements):
        group = [
            value
            for statement in together
            for value in _execute(statement, program, current, holds, masks[statement.chunk], by_fullness, pull_copies)
        ]
        for value in group:
            for rank in value.destinations:
                current[rank, value.chunk] = value
        if group:
            groups.append(group)

    for (rank, chunk), value in current.items():
        if collective.ends(rank, chunk, size, root):
            value.finals.append(rank)
    kept = _drop_unneeded(groups)
    if collective.reduces and not by_fullness:
        kept += _complete([*initial.values(), *(value for group in kept for value in group)])
    return ValueGraph(initial, kept)


def steps_of(statements: list[Statement]) -> Iterator[list[Statement]]:
    """The statements whose right sides are read before any of them writes: one, or the `p.mix` statements of a step."""
    step: list[Statement] = []
    written: set[tuple[int, int]] = set()
    for statement in statements:
        places = {(rank, statement.chunk) for rank in statement.destinations}
        if step and not (statement.weights and written.isdisjoint(places)):
            yield step
            step, written = [], set()
        if statement.weights:
            step.append(statement)
            written |= places
        else:
            yield [statement]
    if step:
        yield step


def _complete(values: list[Value]) -> list[list[Value]]:
    """Mark the results, if ranks end with different contributions.

    One rank's result may be another one's operand, to which factors on results must not be applied: then a copy of it,
    made at the end, becomes the result.

    Returns:
        the copies, each in a group of its own.
    """
    groups = []
    for value in values:
        if not value.finals:
            continue
        if value.sources and not value.reads:
            value.complete, value.raw = True, False
            continue
        for rank in value.finals:
            copy = Value(rank, value.chunk, ((value, rank),), (rank,), value.full, True, value.line)
            copy.finals.append(rank)
            value.reads.append((rank, rank))
            groups.append([copy])
        value.finals = []
    return groups


def _execute(
    statement: Statement,
    program: Program,
    current: dict[tuple[int, int], Value],
    holds: dict[Value, int],
    everyone: int,
    by_fullness: bool,
    pull_copies: bool,
) -> list[Value]:
    """The executions of one statement: one for each destination, or a single one if it has `at`.

    `by_fullness`: those that combine all contributions complete a result.
    """
    chunk = statement.chunk
    try:
        sources = tuple((current[rank, chunk], rank) for rank in statement.sources)
    except KeyError as missing:
        place = missing.args[0]
        raise ProgramError(
            f"{statement.line}: p[{place[0]}, {place[1]}] is read but holds nothing yet"
            f" ({program.collective} on {program.size} ranks, root {program.root})"
        ) from None
    destinations = statement.destinations
    if len(sources) == 1 and not statement.weights:
        origin = sources[0][0].origin
        has_copy = {rank for rank in destinations if (rank, chunk) in current and current[rank, chunk].origin is origin}
        destinations = tuple(rank for rank in destinations if rank not in has_copy)
        if not destinations:
            return []
    mask = 0
    for value, _ in sources:
        mask |= holds[value]
    full = mask == everyone
    complete = by_fullness and full and not any(value.full for value, _ in sources)
    if statement.at is None or (pull_copies and len(sources) == 1):
        group = [
            Value(rank, chunk, sources, (rank,), full, complete, statement.line, statement.weights)
            for rank in destinations
        ]
    else:
        group = [Value(statement.at, chunk, sources, destinations, full, complete, statement.line)]
    for value in group:
        holds[value] = mask
    return group


def _drop_unneeded(groups: list[list[Value]]) -> list[list[Value]]:
    """Record the readers of each value, from the last statement on, and drop executions that are not needed."""
    kept: list[list[Value]] = []
    for group in reversed(groups):
        needed = [value for value in group if value.needed]
        for value in needed:
            for source, name in value.sources:
                source.reads.append((value.rank, name))
        if needed:
            kept.append(needed)
    return kept[::-1]
