"""What a run will measure, as plain data that is sent from the command line to the ranks.

A *candidate* is one library (for ours: one topology and one kind of memory) on one case.  A *group* is a
list of candidates that are measured against each other, interleaved; a *plan* is a list of groups.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from pycollective.cli.commands import choose

from .cases import COLLECTIVES, Case, parse_sizes, sweep_cases

__all__ = [
    "OURS",
    "PATHS",
    "Budget",
    "Candidate",
    "Options",
    "Plan",
    "short_name",
    "short_options",
    "sweep_groups",
]

OURS = "pycollective"
NAMES = {"openmpi": "Open MPI", "mpich": "MPICH", "gloo": "Gloo"}  # display names
PATHS = ("windows", "plain")


@dataclass(frozen=True)
class Candidate:
    """``topology`` is for our library only ("" elsewhere; "default" leaves the choice to the library).

    ``path`` is the memory of the arrays: "windows" (``comm.empty``) or "plain" (any NumPy array).
    ``in_place`` requests one array as input and output; libraries that support only that always get it.
    """

    case: Case
    library: str
    topology: str = ""
    path: str = "plain"
    in_place: bool = False


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
    budget: Budget = field(default_factory=Budget)

    def check(self) -> None:
        """ValueError for options that are invalid on all ranks."""
        for what in ("collectives", "dtypes", "ops"):
            if not getattr(self, what):
                raise ValueError(f"no {what} are given")
        for name in self.collectives:
            choose(name, COLLECTIVES, "collective")
        for path in self.paths:
            choose(path, PATHS, "path")
        if not self.ranks or min(self.ranks) < 1:
            raise ValueError("every rank count must be at least 1")
        if not 0 <= self.root < min(self.ranks):
            raise ValueError(f"root {self.root} is not a rank of {min(self.ranks)}")
        sizes = parse_sizes(self.sizes)
        for dtype in self.dtypes:
            sweep_cases("allreduce", dtype, "sum", sizes, 1)


@dataclass(frozen=True)
class Plan:
    """What the ranks of one world measure: given groups, or a sweep that they expand themselves."""

    groups: tuple[tuple[Candidate, ...], ...] = ()
    sweep: Options | None = None
    peers: tuple[str, ...] = ()
    budget: Budget = field(default_factory=Budget)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Plan:
        data = json.loads(text)
        groups = tuple(
            tuple(Candidate(**{**one, "case": Case(**one["case"])}) for one in group) for group in data["groups"]
        )
        sweep = None if data["sweep"] is None else _options(data["sweep"])
        return Plan(groups, sweep, tuple(data["peers"]), Budget(**data["budget"]))


def _options(data: dict[str, Any]) -> Options:
    values = {f.name: data[f.name] for f in fields(Options)}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return Options(**{**values, "budget": Budget(**data["budget"])})


def sweep_groups(
    options: Options, ranks: int, peers: Sequence[str], topologies: dict[str, list[str]]
) -> list[tuple[Candidate, ...]]:
    """One group for each collective, type, operator and size: the peers, then our topologies on each path.

    ``topologies[collective]`` are the names that implement it.
    """
    sizes = parse_sizes(options.sizes)
    groups = []
    for collective in options.collectives:
        row = COLLECTIVES[collective]
        in_place = options.in_place and row.reduces and not row.in_blocks
        ops = options.ops if row.reduces else options.ops[:1]
        for dtype, op in ((dtype, op) for dtype in options.dtypes for op in ops):
            for case in sweep_cases(collective, dtype, op, sizes, ranks, options.root):
                theirs = [Candidate(case, peer, in_place=in_place) for peer in peers]
                ours = [
                    Candidate(case, OURS, topology, path, in_place)
                    for path in options.paths
                    for topology in topologies[collective]
                ]
                groups.append((*theirs, *ours))
    return groups


def short_name(topology: str) -> str:
    """``NAME`` of ``FILE:NAME``, without the user's path."""
    return topology.rsplit(":", 1)[-1]


def short_options(options: Options) -> dict[str, Any]:
    """The options as stored in a result: plain data, without paths."""
    data = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(options).items()}
    return {**data, "topologies": [short_name(topology) for topology in options.topologies]}
