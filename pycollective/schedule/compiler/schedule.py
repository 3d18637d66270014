"""The compiled form of a collective: a flat list of steps for each rank, as immutable data."""

from __future__ import annotations

import functools
import itertools
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from pycollective import checks, notebook
from pycollective.schedule.compiler.steps import COMBINE, OUT, RECV, SEND, Step, Wait

TABLE_VERSION = 4
COMPLETE, CONSUMED, WEIGHTED, SENDS, RECEIVES, EARLY = 1, 2, 4, 8, 16, 32
OUTPUTS_FINAL, SPANS_HOSTS = 1, 2
_WEIGHT, _HALVES = struct.Struct("=d"), struct.Struct("=ii")


class Placement(Enum):
    """Which of a call's buffers peers can address, and whether input and output are one buffer.

    Every rank of a call uses the same placement.
    """

    STAGED = (False, False, False)
    WINDOW_IN = (True, False, False)
    WINDOW_OUT = (False, True, False)
    WINDOW = (True, True, False)
    INPLACE = (True, True, True)

    def __init__(self, in_shared: bool, out_shared: bool, inplace: bool) -> None:
        self.in_shared = in_shared
        self.out_shared = out_shared
        self.inplace = inplace


@dataclass(frozen=True, slots=True)
class RankSchedule:
    """What one rank executes for every tile, and its other waits.

    Attributes:
        steps: in the order of execution.
        exit_waits: before the call returns, counted in the last tile.
        readers: the last step of each peer that reads this rank's scratch; awaited before a slot is reused.
    """

    steps: tuple[Step, ...]
    exit_waits: tuple[Wait, ...] = ()
    readers: tuple[Wait, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """A compiled collective for all ranks.

    Attributes:
        topology: the topology's name, with its non-default parameters.
        collective, size, root, placement, small: what it was compiled for; root is None if there is none.
        chunks: the number of chunks in the buffer.
        stride: increment of a rank's progress counter per tile: the maximum number of steps of any rank, at least 1.
        cells: scratch cells (of one tile each) that a rank needs in a slot, the maximum over all ranks.
        ranks: one entry per rank.
        mixtures: of a weighted collective, for each rank and chunk (rank * chunks + chunk), the weights by source that
            its result must have; otherwise empty.
        hosts: the host number of each rank, numbered by first appearance; empty if all ranks share one.
    """

    topology: str
    collective: str
    size: int
    root: int | None
    placement: Placement
    small: bool
    chunks: int
    stride: int
    cells: int
    ranks: tuple[RankSchedule, ...]
    mixtures: tuple[Mapping[int, float], ...] = ()
    hosts: tuple[int, ...] = ()

    @functools.cached_property
    def depth(self) -> int:
        """The number of tiles that are in progress at once: a call of t tiles takes t + depth - 1 iterations."""
        return 1 + max((step.lag for rank in self.ranks for step in rank.steps), default=0) if self.hosts else 1

    def index(self, count: int) -> int:
        """The index of the step that a wait's positive `count` means."""
        return (count - 1) % self.stride

    @property
    def title(self) -> str:
        """A description: "ring allreduce, 4 ranks, STAGED"; with hosts "4 ranks on 2 hosts"."""
        return f"{self.heading}, {self.placement.name}"

    @property
    def heading(self) -> str:
        """`title` without the placement: "ring allreduce, 4 ranks"."""
        name = f"{self.topology or 'program'} {self.collective}{' (small)' if self.small else ''}"
        ranks = f"{self.size} rank{'s' if self.size > 1 else ''}"
        ranks += f" on {max(self.hosts) + 1} hosts" if self.hosts else ""
        root = "" if self.root is None else f", root {self.root}"
        return f"{name}, {ranks}{root}"

    def _repr_svg_(self) -> str | None:
        return notebook.picture(self)

    def _repr_html_(self) -> str | None:
        return notebook.html(self)

    def line(self, rank: int, index: int) -> str:
        """The statement that a step executes.

        Args:
            rank: the rank of the step.
            index: of the step in the rank's list.

        Returns:
            "FILE:LINE"; empty if the compiler added the step.
        """
        return self.ranks[rank].steps[index].line

    @functools.cached_property
    def _rereads_outputs(self) -> bool:
        """Whether any chunk of an output is both written and read, and so should stay in the caches."""
        written: set[tuple[int, int]] = set()
        read: set[tuple[int, int]] = set()
        for rank in self.ranks:
            for step in rank.steps:
                written.update((target.rank, step.chunk) for target in step.targets if target.place == OUT)
                read.update((source.rank, step.chunk) for source in step.sources if source.place == OUT)
        return not written.isdisjoint(read)

    @functools.cached_property
    def _consumers(self) -> list[dict[int, list[int]]]:
        """List for each rank the ranks of its host that wait for exactly a step: its index -> ranks, ascending."""
        found: list[dict[int, list[int]]] = [{} for _ in self.ranks]
        for reader, rank in enumerate(self.ranks):
            waiting = (step.waits for step in rank.steps if step.kind != RECV)
            for wait in itertools.chain(rank.exit_waits, rank.readers, *waiting):
                if wait.count > 0:
                    readers = found[wait.peer].setdefault(self.index(wait.count), [])
                    if not readers or readers[-1] != reader:
                        readers.append(reader)
        return found

    def table(self, rank: int) -> array[int]:
        """The schedule of one rank as flat int32, the executor's format.

        Words: version, size, rank, chunks, stride, cells, steps, exit waits, readers, flags (1: no output is read
        in the call after it was written; 2: there are several hosts), depth; then the exit waits and the readers as
        (peer, count); then for each step chunk, flags (1 complete, 2 consumed, 4 weighted, 8 send, 16 recv, 32 early),
        the numbers of waits, sources, targets and consumers, lag; and the lists as (peer, count), (rank, place,
        initial), (rank, place) and (rank). The consumers are the ranks that wait for exactly this step: a GPU pushes
        its progress into their memory. If weighted, the weights follow: the two halves of a float64 for each source. A
        send's targets have no place (0); a recv's source has the count of the sender's step for its place.
        """
        rank = checks.integer(rank, "rank", 0, self.size - 1)
        mine, waiting = self.ranks[rank], self._consumers[rank]
        counts = (len(mine.steps), len(mine.exit_waits), len(mine.readers))
        words = [TABLE_VERSION, self.size, rank, self.chunks, self.stride, self.cells, *counts]
        words += (OUTPUTS_FINAL * (not self._rereads_outputs) | SPANS_HOSTS * bool(self.hosts), self.depth)
        for wait in mine.exit_waits + mine.readers:
            words += (wait.peer, wait.count)
        for index, step in enumerate(mine.steps):
            consumers = waiting.get(index, ())
            words += (step.chunk, _flags(step), len(step.waits), len(step.sources), len(step.targets))
            words += (len(consumers), step.lag)
            for wait in step.waits:
                words += (wait.peer, wait.count)
            for source in step.sources:
                words += (source.rank, source.place, int(source.initial))
            for target in step.targets:
                words += (target.rank, target.place)
            words += consumers
            for weight in step.weights:
                words += _HALVES.unpack(_WEIGHT.pack(weight))
        return array("i", words)


def _flags(step: Step) -> int:
    flags = COMPLETE * step.complete + CONSUMED * step.consumed + WEIGHTED * bool(step.weights)
    if step.kind == COMBINE:
        return flags
    return flags + (SENDS if step.kind == SEND else RECEIVES) + EARLY * step.early


def traffic(schedule: Schedule) -> dict[tuple[int, int], Fraction]:
    """The data sent from one host to another, by (sender, receiver), as multiples of the buffer's size.

    The buffer is divided equally; blocks of different sizes are not considered.

    Raises:
        TypeError: not a schedule.
    """
    checks.instance(schedule, "schedule", Schedule, "a Schedule")
    sent: dict[tuple[int, int], Fraction] = {}
    for rank, mine in enumerate(schedule.ranks):
        for step in mine.steps:
            if step.kind == SEND:
                for target in step.targets:
                    pair = schedule.hosts[rank], schedule.hosts[target.rank]
                    sent[pair] = sent.get(pair, Fraction(0)) + Fraction(1, schedule.chunks)
    return dict(sorted(sent.items()))
