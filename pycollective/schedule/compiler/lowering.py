"""Second pass of the compiler: the location of each value, and the steps that bring it there.

It depends on the placement. If peers can write a rank's output, values are stored where the program specifies. If they
cannot, a value is stored by the rank that produces it: in its own output if it is that rank's result, in a cell of
its scratch if others need it, both written by one step; every other rank whose result it is copies it from there.
So a push becomes a pull, and a value with many destinations is stored once. A raw contribution that peers need
is first copied from a private input into a cell.

Dependencies come from physical memory: read after write, write after read and write after write on
(rank, place, chunk), in the order in which the steps are emitted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pycollective.schedule.collectives import COLLECTIVES
from pycollective.schedule.compiler.schedule import Placement
from pycollective.schedule.compiler.steps import COMBINE, IN, OUT, RECV, SEND, Kind, Source, Target
from pycollective.schedule.compiler.values import Value, ValueGraph
from pycollective.schedule.language.program import Program

Location = tuple[int, int, int]
"""(rank, place, chunk)."""


@dataclass(eq=False, repr=False, slots=True)
class LoweredStep:
    """A step before it has a position in its rank's list.

    Attributes:
        depends: steps that must complete before.
        entered: peers that must have entered the call before.
        depth: the longest chain of dependencies up to here.
        lag: the number of tiles behind the newest one: the largest number of messages on such a chain, or a multiple.
        position: index in the rank's list, set by the pass that orders the steps.
        line: "file:line" of the statement; empty for steps that only make inputs available.
        value: what a send or recv transfers.
        receipts: of a send, the recv steps of its message, one for each target.
        message: of a recv, the send step.
    """

    rank: int
    chunk: int
    sources: list[Source]
    targets: list[Target]
    complete: bool
    line: str = ""
    weights: tuple[float, ...] = ()
    kind: Kind = COMBINE
    value: Value | None = None
    message: LoweredStep | None = None
    receipts: list[LoweredStep] = field(default_factory=list, init=False)
    depends: list[LoweredStep] = field(default_factory=list, init=False)
    entered: list[int] = field(default_factory=list, init=False)
    depth: int = field(default=0, init=False)
    lag: int = field(default=0, init=False)
    position: int = field(default=-1, init=False)


class Lowering:
    """The state of the pass: the steps emitted so far, and the last accesses to each location."""

    def __init__(self, program: Program, placement: Placement) -> None:
        self.steps: list[LoweredStep] = []
        self._placement = placement
        self._out_shared = placement.out_shared
        self._collective = COLLECTIVES[program.collective]
        self._size, self._root = program.size, program.root or 0
        self._reduces = self._collective.reduces
        self._cells = [0] * program.size  # cells in use, by rank
        self._cell_of: dict[Value, int] = {}
        self._output_at: dict[Value, list[int]] = {}  # the ranks whose output contains a value
        self._written: dict[Location, LoweredStep] = {}
        self._read: dict[Location, list[LoweredStep]] = {}

    def run(self, graph: ValueGraph) -> list[LoweredStep]:
        """The steps of all ranks that compute the values, in an order that respects their dependencies."""
        self.bring_in_all([value for value in graph.initial.values() if value.needed])
        for group in graph.groups:
            if len(group) == 1:
                self.execute(group[0])
            else:
                self.execute_together(group)
        return self.steps

    # Locations of values

    def bring_in_all(self, values: list[Value]) -> None:
        """Make the initial values available to the ranks that need them."""
        for value in values:
            self.bring_in(value)

    def bring_in(self, value: Value) -> None:
        """Make an initial value available to the ranks that need it."""
        rank, here = value.rank, self._placement
        has_output = self._has_output(rank, value.chunk)
        is_result = bool(value.finals)
        if here.inplace and has_output:  # input and output are one: it is there already
            self._output_at[value] = [rank]
            if is_result and self._reduces and value.full:  # a single rank: keep the step that scales
                self._append(LoweredStep(rank, value.chunk, [Source(rank, OUT, True)], [Target(rank, OUT)], True))
            return
        targets = [Target(rank, OUT)] if is_result else []
        if not here.in_shared and self._read_by_peers(value):
            if is_result and here.out_shared:
                self._output_at[value] = [rank]
            else:
                targets.append(self._new_cell(value))
        if targets:
            source = Source(rank, IN, self._reduces)
            self._append(LoweredStep(rank, value.chunk, [source], targets, self._reduces and value.full))

    def _locate(self, value: Value, name: int, reader: int) -> Source:
        """The location where `reader` finds a value that the program reads as p[name, chunk]."""
        initial = self._reduces and value.raw
        outputs = self._output_at.get(value, ())
        if self._out_shared:
            if name in outputs:
                return Source(name, OUT, initial)
        elif reader == value.rank and reader in outputs:
            return Source(reader, OUT, initial)
        if not value.sources and (reader == value.rank or self._placement.in_shared):
            return Source(value.rank, IN, initial)
        return Source(value.rank, self._cell_of[value], initial)

    def _targets(self, value: Value) -> list[Target]:
        """The locations that the execution of a value writes.

        Shared outputs: as in the program; a cell is used instead if a rank has no output for this chunk.
        """
        rank = value.rank
        if self._out_shared:
            outputs = self._live_outputs(value)
            needs_cell = self._needs_cell(value, outputs)
        else:
            outputs = [rank] if rank in value.finals or self._is_passing_through(value) else []
            needs_cell = self._read_by_peers(value) or not outputs
        self._output_at[value] = outputs
        targets = [Target(rank, OUT) for rank in outputs]
        if needs_cell:
            targets.append(self._new_cell(value))
        return targets

    def _read_by_peers(self, value: Value) -> bool:
        """Private buffers: whether another rank reads the value from its rank's memory."""
        return any(rank != value.rank for rank in (*value.finals, *(reader for reader, _ in value.reads)))

    def _needs_cell(self, value: Value, outputs: list[int]) -> bool:
        """Shared outputs: whether the program reads the value from a place where it is not."""
        return any(name not in outputs for _, name in value.reads)

    def _live_outputs(self, value: Value) -> list[int]:
        """The ranks whose output the program writes with a value that is later read there or is a result."""
        live = set(value.finals)
        live.update(name for _, name in value.reads)
        return [rank for rank in value.destinations if rank in live and self._has_output(rank, value.chunk)]

    def _is_passing_through(self, value: Value) -> bool:
        """Private outputs: an intermediate value that only its own rank reads, in a place that it later overwrites."""
        return (
            value.destinations == (value.rank,)
            and not value.finals
            and all(reader == value.rank for reader, _ in value.reads)
            and self._has_output(value.rank, value.chunk)
        )

    def _has_output(self, rank: int, chunk: int) -> bool:
        return self._collective.ends(rank, chunk, self._size, self._root)

    def _new_cell(self, value: Value) -> Target:
        target = self._free_cell(value.rank)
        self._cell_of[value] = target.place
        return target

    def _free_cell(self, rank: int) -> Target:
        cell = self._cells[rank]
        self._cells[rank] += 1
        return Target(rank, cell)

    # Steps

    def execute(self, value: Value) -> None:
        """One execution: the step itself, and the copies to outputs that its rank cannot write."""
        self._combine(value, self._sources(value), self._targets(value))
        self._copy_to_results(value)

    def _copy_to_results(self, value: Value) -> None:
        for rank in value.finals:
            if rank not in self._output_at[value]:
                self._copy(value, rank, self._locate(value, rank, rank), [Target(rank, OUT)])

    def execute_together(self, group: list[Value]) -> None:
        """The executions of one statement: each before those that overwrite what it reads.

        If they wait for each other in a cycle (every rank overwrites what every rank reads), each first computes into a
        cell of its own rank, and copies after all have read.
        """
        if not self._out_shared:  # peers read cells, which are written once
            for value in group:
                self.execute(value)
            return
        readers: dict[int, set[Value]] = {}  # of each rank's output
        for value in group:
            for source in self._sources(value):
                if source.place == OUT:
                    readers.setdefault(source.rank, set()).add(value)
        pending = group
        while pending:
            free = [value for value in pending if self._may_write(value, readers)]
            if not free:
                self._execute_in_two_steps(pending)
                return
            for value in free:
                self.execute(value)
                for others in readers.values():
                    others.discard(value)
            pending = [value for value in pending if value not in free]

    def _may_write(self, value: Value, readers: dict[int, set[Value]]) -> bool:
        """Return whether no other execution has yet to read the locations that this one overwrites."""
        return all(readers.get(rank, set()) <= {value} for rank in self._live_outputs(value))

    def _execute_in_two_steps(self, group: list[Value]) -> None:
        cells = []
        for value in group:
            sources = self._sources(value)
            cells.append(self._new_cell(value))
            self._combine(value, sources, cells[-1:])
        for value, cell in zip(group, cells, strict=True):
            source = Source(cell.rank, cell.place, self._reduces and value.raw)
            outputs = self._output_at[value] = self._live_outputs(value)
            if outputs:
                self._copy(value, value.rank, source, [Target(rank, OUT) for rank in outputs])
            self._copy_to_results(value)

    def _sources(self, value: Value) -> list[Source]:
        return [self._locate(source, name, value.rank) for source, name in value.sources]

    def _combine(self, value: Value, sources: list[Source], targets: list[Target]) -> None:
        self._append(LoweredStep(value.rank, value.chunk, sources, targets, value.complete, value.line, value.weights))

    def _copy(self, value: Value, rank: int, source: Source, targets: list[Target]) -> None:
        self._append(LoweredStep(rank, value.chunk, [source], targets, False, value.line))

    def _append(self, step: LoweredStep) -> None:
        """Append a step that depends on the earlier accesses to the memory that it reads and writes."""
        rank, chunk = step.rank, step.chunk
        sources = [] if step.kind == RECV else step.sources  # of a message only one end is memory of this rank
        targets = [] if step.kind == SEND else step.targets
        written, read, depends = self._written, self._read, step.depends
        read_at = [self._location(source.rank, source.place, chunk) for source in sources]
        for source, where in zip(sources, read_at, strict=True):
            if source.place < 0 and source.rank != rank:
                step.entered.append(source.rank)
            if where in written:
                depends.append(written[where])
        for target in targets:
            if target.rank != rank:
                step.entered.append(target.rank)
            where = self._location(target.rank, target.place, chunk)
            if where in written:
                depends.append(written[where])
            depends.extend(read.pop(where, ()))
        for where in read_at:
            read.setdefault(where, []).append(step)
        for target in targets:
            written[self._location(target.rank, target.place, chunk)] = step
        step.depth = 1 + max([before.depth for before in depends], default=0)
        self.steps.append(step)

    def _location(self, rank: int, place: int, chunk: int) -> Location:
        """The memory location of a place. Staged calls may pass one private array as input and output."""
        if place == IN and self._placement is Placement.STAGED:
            place = OUT
        return rank, place, chunk
