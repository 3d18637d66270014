"""What a run will measure, as plain data that is sent from the command line to the ranks.

A *candidate* is one library (for ours: one topology and one kind of memory) on one case.  A *group* is a
list of candidates that are measured against each other, interleaved; a *plan* is a list of groups.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from pycollective.cli.commands import choose

from .cases import BARRIER, MEASURED, SENDRECV, Case, element_size, parse_size, parse_sizes, sweep_cases

__all__ = [
    "ARRAYS",
    "OURS",
    "PAGE",
    "PATHS",
    "Budget",
    "Candidate",
    "Conditions",
    "Options",
    "Plan",
    "has_topologies",
    "short_name",
    "short_options",
    "sweep_groups",
]

OURS = "pycollective"
NAMES = {
    "openmpi": "Open MPI", "mpich": "MPICH", "impi": "Intel MPI", "gloo": "Gloo", "oneccl": "oneCCL",
    "sockets": "plain sockets",
}  # fmt: skip
PATHS = ("windows", "plain")
ARRAYS = ("numpy", "torch")
PAGE = 4096
"""Bytes: what decides how addresses alias repeats at this distance."""
_SEED = 20_240_517


@dataclass(frozen=True)
class Candidate:
    """``topology`` is for our library only ("" elsewhere; "default" leaves the choice to the library).

    ``path`` is the memory of the arrays: "windows" (``comm.empty``), "shared" (``shared_arrays``) or "plain" (NumPy).
    ``in_place`` requests one array as input and output; libraries that support only that always get it.
    ``arrays`` is for our library only: "numpy", or "torch" for CPU tensors in the same memory.
    """

    case: Case
    library: str
    topology: str = ""
    path: str = "plain"
    in_place: bool = False
    arrays: str = "numpy"


@dataclass(frozen=True)
class Conditions:
    """The conditions under which all candidates are measured, the same for all of a group.

    ``fresh``: every rank writes its input before every timed call.  ``align``: where arrays begin within a page:
    "random", "page" (at its begin), or a number of bytes.  ``neighbours``: busy processes beside the measurement.
    ``quartile``: a round counts with the lower quartile of its calls instead of their mean, which a few calls
    decide where ranks exceed cores; needs ``fresh``, as only then calls are timed one by one.
    """

    fresh: bool = True
    align: str = "random"
    neighbours: int = 0
    quartile: bool = False

    def check(self, dtypes: Sequence[str]) -> None:
        """ValueError for conditions that are invalid for these element types."""
        if self.neighbours < 0:
            raise ValueError(f"{self.neighbours} neighbours: there cannot be fewer than none")
        if self.quartile and not self.fresh:
            raise ValueError("quartiles need fresh inputs: otherwise calls are not timed one by one")
        if self.align in ("random", "page"):
            return
        try:
            begin = parse_size(self.align)
        except ValueError:
            raise ValueError(f"--align takes random, page or a number of bytes, not {self.align!r}") from None
        for dtype in dtypes:
            if begin % element_size(dtype):
                raise ValueError(f"--align {begin} is not a multiple of the {element_size(dtype)} bytes of {dtype}")

    def offsets(self, case: Case) -> tuple[int, int]:
        """Where the case's input and output begin, in bytes after a page boundary: the same on all ranks and in all
        runs, multiples of the element size.
        """
        if self.align != "random":
            begin = 0 if self.align == "page" else parse_size(self.align)
            return begin, begin
        width = element_size(case.dtype)
        generator = np.random.default_rng([_SEED, zlib.crc32(repr(case).encode())])
        first, second = generator.integers(0, PAGE // width, 2) * width
        return int(first), int(second)


@dataclass(frozen=True)
class Budget:
    """How long to measure: seconds per block of repetitions, rounds, and maximum seconds per group.

    As in nccl-tests, if given: ``calls`` are timed one after the other, in one round, after ``warmup``
    others, and ``checks`` calls are checked; 0 checks none.
    """

    block_s: float = 0.015
    rounds: int = 25
    least_rounds: int = 5
    group_s: float = 3.0
    calls: int | None = None
    warmup: int | None = None
    checks: int | None = None

    @staticmethod
    def quick() -> Budget:
        """Enough to see that everything works, with rough figures."""
        return Budget(block_s=0.003, rounds=7, least_rounds=3, group_s=0.4)

    def beside(self, neighbours: int) -> Budget:
        """Budget with turns so long that the scheduler gives busy neighbours a share of each."""
        return replace(self, block_s=max(0.1, self.block_s), group_s=3 * self.group_s) if neighbours else self


@dataclass(frozen=True)
class Options:
    """A sweep as the command line describes it (``python -m bench --help`` explains each)."""

    collectives: tuple[str, ...] = ("allreduce",)
    topologies: tuple[str, ...] = ()  # empty: all that have the collective; ("none",): only the peers
    sizes: str = "4:256M:x4"
    ranks: tuple[int, ...] = (2, 4, 8)
    dtypes: tuple[str, ...] = ("float32",)
    ops: tuple[str, ...] = ("sum",)
    peers: tuple[str, ...] = ("mpi", "gloo")
    paths: tuple[str, ...] = PATHS
    root: int = 0
    in_place: bool = False
    arrays: tuple[str, ...] = ("numpy",)
    budget: Budget = field(default_factory=Budget)
    conditions: Conditions = field(default_factory=Conditions)

    def check(self) -> None:
        """ValueError for options that are invalid on all ranks."""
        for what in ("collectives", "dtypes", "ops"):
            if not getattr(self, what):
                raise ValueError(f"no {what} are given")
        for name in self.collectives:
            choose(name, MEASURED, "collective")
        for path in self.paths:
            choose(path, (*PATHS, "shared"), "path")
        for kind in self.arrays:
            choose(kind, ARRAYS, "kind of array")
        if not self.ranks or min(self.ranks) < 1:
            raise ValueError("every rank count must be at least 1")
        if not 0 <= self.root < min(self.ranks):
            raise ValueError(f"root {self.root} is not a rank of {min(self.ranks)}")
        sizes = parse_sizes(self.sizes)
        for dtype in self.dtypes:
            sweep_cases("allreduce", dtype, "sum", sizes, 1)
        self.conditions.check(self.dtypes)


@dataclass(frozen=True)
class Plan:
    """What the ranks of one world measure: given groups, or a sweep that they expand themselves."""

    groups: tuple[tuple[Candidate, ...], ...] = ()
    sweep: Options | None = None
    peers: tuple[str, ...] = ()
    budget: Budget = field(default_factory=Budget)
    conditions: Conditions = field(default_factory=Conditions)

    @property
    def wanted(self) -> tuple[str, ...]:
        """The other libraries, as requested."""
        return self.sweep.peers if self.sweep else self.peers

    def with_peers(self, peers: tuple[str, ...]) -> Plan:
        """Copy of the plan with other peers."""
        return replace(self, sweep=replace(self.sweep, peers=peers)) if self.sweep else replace(self, peers=peers)


def sweep_groups(
    options: Options, ranks: int, peers: Sequence[str], topologies: dict[str, list[str]]
) -> list[tuple[Candidate, ...]]:
    """One group for each collective, type, operator and size: the peers, then our topologies on each path.

    ``topologies[collective]`` are the names that implement it.
    """
    sizes = parse_sizes(options.sizes)
    groups = []
    for collective in options.collectives:
        row = MEASURED[collective]
        in_place = options.in_place and row.reduces and not row.in_blocks
        ops = options.ops if row.reduces else options.ops[:1]
        for dtype, op in ((dtype, op) for dtype in options.dtypes for op in ops):
            for case in sweep_cases(collective, dtype, op, sizes, ranks, options.root):
                theirs = [Candidate(case, peer, in_place=in_place) for peer in peers]
                ours = [
                    Candidate(case, OURS, topology, path, in_place, arrays)
                    for path, arrays in _memories(options, collective)
                    for topology in topologies[collective]
                ]
                groups.append((*theirs, *ours))
    return groups


def _memories(options: Options, collective: str) -> list[tuple[str, str]]:
    """(path, kind of array) of our candidates; a barrier has no arrays."""
    if collective == BARRIER:
        return [("plain", "numpy")] if options.paths else []
    return [(path, arrays) for arrays in options.arrays for path in options.paths]


def has_topologies(collective: str) -> bool:
    """Return whether topologies implement the call: not messages and the barrier, nor `mix`, which has its graph."""
    return collective not in (SENDRECV, BARRIER) and not MEASURED[collective].weighted


def short_name(topology: str) -> str:
    """``NAME`` of ``FILE:NAME``, without the user's path."""
    return topology.rsplit(":", 1)[-1]


def short_options(options: Options) -> dict[str, Any]:
    """The options as stored in a result: plain data, without paths."""
    data = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(options).items()}
    return {**data, "topologies": [short_name(topology) for topology in options.topologies]}
