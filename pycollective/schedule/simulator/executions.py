"""A program as executions and their dependencies, in flat arrays: the simulator's input.

For the compiler, values.py and lowering.py do the same with several objects per statement. Here everything is numbers
in arrays, so that programs of millions of statements fit. Memory: one place for each (rank, chunk).
"""

from __future__ import annotations

import itertools
from array import array

from pycollective.errors import ProgramError
from pycollective.schedule.collectives import COLLECTIVES
from pycollective.schedule.language.program import Program, Statement

Ranks = tuple[int, ...]


class Executions(Program):
    """A program that stores the executions of its statements instead of the statements.

    Execution e is performed by ranks[e] on chunks[e], reads the ranks in `sources` from source_at[e] to
    source_at[e + 1], and writes those in `targets` from target_at[e] to target_at[e + 1]. `finish` drops unneeded ones.

    Attributes:
        group: the number of the statement; executions of one are simultaneous, all read before any writes.
        depth: of each execution, the longest chain of dependencies up to it, from 1.
        height: the longest chain of those that depend on it, from 0.
        before, before_at: the executions that must complete before each, stored like `sources`.
        values: for each source, the execution that wrote what is read there, or -1 if it is there initially.

    Raises:
        ProgramError: as for a program, or more than `limit` places are read and written.
    """

    def __init__(self, collective: str, size: int, root: int | None, limit: int, hosts: tuple[int, ...] = ()) -> None:
        super().__init__(collective, size, root, hosts)
        self.limit = limit
        self._clear()
        self.depth, self.height = array("i"), array("i")
        self.before, self.before_at = array("i"), array("q", [0])
        self.values = array("i")
        self._table = COLLECTIVES[collective]
        self._statements = 0
        self._holds: dict[int, int] = {}  # content of chunk * size + rank: an index of targets, or ~place initially
        self._origin = array("q")  # for each target, the first target that got its value

    def _clear(self) -> None:
        """Start with empty arrays of executions."""
        self.rank, self.chunk, self.group = array("i"), array("i"), array("i")
        self.sources, self.source_at = array("i"), array("q", [0])
        self.targets, self.target_at = array("i"), array("q", [0])
        self._writer = array("i")  # for each source, the index of the target that wrote it; below 0: none

    def __len__(self) -> int:
        return len(self.rank)

    def record(self, statement: Statement) -> None:
        """Append the executions of a statement: one for each destination, or a single one if it has `at`.

        With several hosts, each destination makes its copy itself, as in compiled schedules: outputs are private.
        """
        chunk, sources = statement.chunk, statement.sources
        read = [content for rank in sources if (content := self._content(rank, chunk)) is not None]
        if len(read) < len(sources):
            empty = next(rank for rank in sources if self._content(rank, chunk) is None)
            raise ProgramError(
                f"{statement.line}: p[{empty}, {chunk}] is read but holds nothing yet"
                f" ({self.collective} on {self.size} ranks, root {self.root})"
            )
        origin, targets = None, statement.destinations
        if len(sources) == 1:  # no copy is made of what is there already
            origin = self._origin_of(read[0])
            targets = tuple(rank for rank in targets if self._origin_of(self._content(rank, chunk)) != origin)
        self._statements += 1
        each = statement.at is None or (len(sources) == 1 and bool(self.host_of))
        self._refuse_more(statement, len(sources) * (len(targets) if each else 1) + len(targets))
        writers = array("i", [max(-1, content) for content in read])
        if each:
            for rank in targets:
                self._append(rank, chunk, sources, (rank,), writers, origin)
        elif targets:
            assert statement.at is not None
            self._append(statement.at, chunk, sources, targets, writers, origin)
        for at in range(len(self.targets) - len(targets), len(self.targets)):
            self._holds[chunk * self.size + self.targets[at]] = at

    def _refuse_more(self, statement: Statement, places: int) -> None:
        if len(self.sources) + len(self.targets) + places > self.limit:
            raise ProgramError(
                f"{statement.line}: {self.collective} on {self.size} ranks is too large to simulate: its first "
                f"{self._statements} statements read and write more than {self.limit} places"
            )

    def _append(
        self, rank: int, chunk: int, sources: Ranks, targets: Ranks, writers: array[int], origin: int | None
    ) -> None:
        value = len(self.targets) if origin is None else origin
        self._origin.extend([value] * len(targets))
        self.rank.append(rank)
        self.chunk.append(chunk)
        self.group.append(self._statements)
        self.sources.extend(sources)
        self.targets.extend(targets)
        self._writer.extend(writers)
        self.source_at.append(len(self.sources))
        self.target_at.append(len(self.targets))

    def _content(self, rank: int, chunk: int) -> int | None:
        """What a place holds, as in `_holds`; None: nothing."""
        place = chunk * self.size + rank
        content = self._holds.get(place)
        if content is None and self._table.starts(rank, chunk, self.size, self.root or 0):
            content = self._holds[place] = ~place
        return content

    def _origin_of(self, content: int | None) -> int | None:
        return content if content is None or content < 0 else self._origin[content]

    def finish(self) -> None:
        """Drop what is not needed, and determine the dependencies."""
        needed = self._needed()
        if not all(needed):
            self._keep(needed)
        del self._holds, self._origin
        self._find_dependencies()
        del self._writer
        self.height = array("i", bytes(4 * len(self)))
        for number in reversed(range(len(self))):
            above = self.height[number] + 1
            for earlier in self.before[self.before_at[number] : self.before_at[number + 1]]:
                if self.height[earlier] < above:
                    self.height[earlier] = above

    def _needed(self) -> bytearray:
        """List for each target whether what is written there is read or is a result."""
        needed = bytearray(len(self.targets))
        for place, content in self._holds.items():
            if content >= 0 and self._table.ends(place % self.size, place // self.size, self.size, self.root or 0):
                needed[content] = 1
        for number in reversed(range(len(self))):
            if any(needed[self.target_at[number] : self.target_at[number + 1]]):
                for writer in self._writer[self.source_at[number] : self.source_at[number + 1]]:
                    if writer >= 0:
                        needed[writer] = 1
        return needed

    def _keep(self, needed: bytearray) -> None:
        """Rebuild the arrays with the needed executions and targets."""
        ranks, chunks, groups, writers = self.rank, self.chunk, self.group, self._writer
        sources, source_at, targets, target_at = self.sources, self.source_at, self.targets, self.target_at
        self._clear()
        for number, rank in enumerate(ranks):
            written = range(target_at[number], target_at[number + 1])
            kept = tuple(targets[at] for at in written if needed[at])
            if kept:
                read = slice(source_at[number], source_at[number + 1])
                self._statements = groups[number]
                self._append(rank, chunks[number], tuple(sources[read]), kept, writers[read], None)

    def _find_dependencies(self) -> None:
        """Read after write, write after read and write after write, on places of the program."""
        written: dict[int, int] = {}  # place -> the execution that wrote it last
        readers: dict[int, list[int]] = {}  # place -> those that have read it since
        for _, numbers in itertools.groupby(range(len(self)), self.group.__getitem__):
            group = list(numbers)
            reads = [self._places(number, self.sources, self.source_at) for number in group]
            before = [{written[place] for place in places if place in written} for places in reads]
            self.values.extend(written.get(place, -1) for places in reads for place in places)
            for number, found in zip(group, before, strict=True):
                for place in self._places(number, self.targets, self.target_at):
                    if place in written:
                        found.add(written[place])
                    found.update(readers.pop(place, ()))
                    written[place] = number
                depth = 1
                for earlier in found:
                    if self.depth[earlier] >= depth:
                        depth = self.depth[earlier] + 1
                self.depth.append(depth)
                self.before.extend(found)
                self.before_at.append(len(self.before))
            for number, places in zip(group, reads, strict=True):
                for place in places:
                    readers.setdefault(place, []).append(number)

    def _places(self, number: int, ranks: array[int], at: array[int]) -> list[int]:
        base = self.chunk[number] * self.size
        return [base + rank for rank in ranks[at[number] : at[number + 1]]]
