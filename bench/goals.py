"""The speed goals: what is measured for each, and how it is evaluated.  Data; speed.py and calls.py measure it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .measurement.stats import Ratio, paired_ratio
from .peers.ceiling import CEILING
from .result import Row
from .workload.cases import KIB, MEASURED, Case, format_size
from .workload.plan import OURS, Candidate

__all__ = [
    "BETTER_OF",
    "CALLS",
    "GOALS",
    "LIMITS",
    "Comparison",
    "Limit",
    "Outcome",
    "groups_for",
    "outcome_of",
]

MIB = KIB**2
PEERS = {"Open MPI": ("openmpi", "mpich", "mpi"), "Gloo": ("gloo",), "the ceiling": (CEILING,), "float32": (OURS,)}
BETTER_OF = "the better of Intel MPI and oneCCL"
PEERS[BETTER_OF] = ("impi", "oneccl")
_SMALL = (4, 64, 1024)


@dataclass(frozen=True)
class Comparison:
    """Our time against a peer's: ``least`` is the smallest ratio (theirs over ours) that meets the goal."""

    name: str
    against: str  # a key of PEERS
    least: float
    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    paths: tuple[str, ...] = ("windows",)
    collective: str = "allreduce"
    topologies: tuple[str, ...] = ("default",)
    dtype: str = "float32"


@dataclass(frozen=True)
class Limit:
    """A time that must not be exceeded (see measurement/overheads.py)."""

    name: str
    key: str
    most: float  # seconds


def _row(
    name: str, mpi: float, gloo: float, ranks: tuple[int, ...], sizes: tuple[int, ...], *paths: str
) -> Iterator[Comparison]:
    for peer, least in (("Open MPI", mpi), ("Gloo", gloo)):
        yield Comparison(name, peer, least, ranks, sizes, paths)


def _line(name: str, against: str, least: float, ranks: int, **what: str | tuple[str, ...]) -> Comparison:
    return Comparison(name, against, least, (ranks,), (64 * MIB,), **what)  # type: ignore[arg-type]


GOALS = (
    *_row("2 ranks, <= 1 KiB", 2, 20, (2,), _SMALL, "windows", "plain"),
    *_row("2 ranks, 64 KiB to 1 MiB, windows", 10, 20, (2,), (64 * KIB, 256 * KIB, MIB), "windows"),
    *_row("2 ranks, 64 MiB, windows", 5, 7, (2,), (64 * MIB,), "windows"),
    *_row("4 ranks, 64 MiB, windows", 6, 8, (4,), (64 * MIB,), "windows"),
    *_row("8 ranks, 64 MiB, windows", 8, 10, (8,), (64 * MIB,), "windows"),
    *_row("2 to 8 ranks, 64 MiB, plain arrays (staged)", 2, 3, (2, 4, 8), (64 * MIB,), "plain"),
    *_row("8 ranks, <= 1 KiB", 3, 10, (8,), _SMALL, "windows", "plain"),
    _line("bfloat16, 2 ranks, 64 MiB: time per byte", "float32", 1 / 1.2, 2, dtype="bfloat16"),
    _line("broadcast, 2 ranks, 64 MiB", "Open MPI", 2, 2, collective="broadcast"),
    _line("2 ranks, 64 MiB, windows, of the ceiling", "the ceiling", 0.9, 2),
    _line("ring, 4 ranks, 64 MiB", "Open MPI", 1, 4, topologies=("ring",)),
    _line("tree, 4 ranks, 64 MiB", "Open MPI", 1, 4, topologies=("tree",)),
    _line("wheel, 4 ranks, 64 MiB", "Open MPI", 1, 4, topologies=("wheel",)),
)
CALLS = tuple(
    Comparison(f"allreduce on plain arrays, {format_size(size)}", BETTER_OF, least, (2,), (size,), ("plain",))
    for size, least in ((8, 2.0), (64 * KIB, 1.5), (MIB, 1.3), (64 * MIB, 1.4))
)
"""What calls.py shows where it has measured all of it."""
LIMITS = (
    Limit("a schedule for 8 ranks compiled (the slowest topology)", "compile", 20e-3),
    Limit("a cached call: allreduce of one element on one rank", "call", 1e-6),
    Limit("import pycollective", "import", 100e-3),
    Limit("init of 4 ranks, beyond mpirun's own start", "init", 300e-3),
)


def groups_for(ranks: int) -> list[tuple[Candidate, ...]]:
    """The groups to measure on this many ranks: for each case of the goals a group with all its peers."""
    groups: dict[tuple[str, int], dict[Candidate, None]] = {}
    for comparison in (one for one in GOALS if ranks in one.ranks):
        for size in comparison.sizes:
            group = groups.setdefault((comparison.collective, size), {})
            group.update(dict.fromkeys(_candidates(comparison, ranks, size)))
    return [tuple(group) for group in groups.values()]


def _case(collective: str, dtype: str, ranks: int, size: int) -> Case:
    width = 2 if dtype == "bfloat16" else 4
    row = MEASURED[collective]
    return Case(collective, dtype, "sum" if row.reduces else "none", size // width, ranks, 0 if row.rooted else -1)


def _candidates(one: Comparison, ranks: int, size: int) -> list[Candidate]:
    """Ours and theirs, each in place and with two arrays if the collective supports both: the faster form counts."""
    case, float_case = (_case(one.collective, dtype, ranks, size) for dtype in (one.dtype, "float32"))
    forms = (False,) if case.kind.single_buffer else (False, True)
    if one.against == "the ceiling":
        return [Candidate(case, CEILING, "", "windows"), Candidate(case, OURS, "default", "windows")]
    ours = [
        Candidate(case, OURS, topology, path, form)
        for topology in one.topologies
        for path in one.paths
        for form in forms
    ]
    if one.against == "float32":
        return [Candidate(float_case, OURS, "default", path) for path in one.paths] + ours
    if one.against == "Gloo":  # it supports one form only
        return [Candidate(case, "gloo"), *ours]
    return [*(Candidate(case, "mpi", "", "plain", form) for form in forms), *ours]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a comparison: its worst case, and every case."""

    ratio: Ratio
    case: str  # the worst case
    ours_us: float
    theirs_us: float
    rival: str  # whose time that is
    cases: dict[str, float]  # "4 ranks, 64 MiB, windows" -> median ratio


def outcome_of(one: Comparison, rows: Sequence[Row]) -> Outcome | None:
    """The comparison's outcome in the rows of a run; None if either side was not measured."""
    found: dict[str, tuple[Ratio, float, float, str]] = {}
    wanted = [(ranks, size, path) for ranks in one.ranks for size in one.sizes for path in one.paths]
    for ranks, size, path in wanted:
        here = [r for r in rows if (r.collective, r.ranks, r.size) == (one.collective, ranks, size)]
        ours = [r for r in here if r.library == OURS and (r.type, r.path) == (one.dtype, path)]
        ours = [r for r in ours if r.topology in one.topologies]
        theirs = [r for r in here if r.library in PEERS[one.against] and r not in ours]
        if one.against in ("the ceiling", "float32"):  # the same form
            ours, theirs = ([r for r in side if not r.in_place] for side in (ours, theirs))
        if one.against == "float32":
            theirs = [r for r in theirs if (r.type, r.path, r.topology) == ("float32", path, "default")]
        if not ours or not theirs:
            return None
        best, rival = (min(side, key=lambda r: r.time_us) for side in (ours, theirs))
        label = f"{ranks} ranks, {format_size(size)}, {path}"
        found[label] = paired_ratio(best.rounds_us, rival.rounds_us), best.time_us, rival.time_us, rival.library
    worst = min(found, key=lambda label: found[label][0].median)
    ratio, ours_us, theirs_us, name = found[worst]
    return Outcome(ratio, worst, ours_us, theirs_us, name, {label: each[0].median for label, each in found.items()})
