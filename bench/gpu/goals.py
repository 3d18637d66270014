"""The goals for one GPU, and those that a run meets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pycollective.cli.units import format_time

from ..measurement.stats import paired_ratio, rounded
from ..report.lines import ratio_text, times_text
from ..row import Line
from ..workload.cases import KIB, format_size
from .rows import Check, Row

LARGE = (16 * KIB**2, 256 * KIB**2)
BOTH = ("float32", "bfloat16")


@dataclass(frozen=True)
class Goal:
    """A candidate against another, in the worst of all sizes and element types.

    Args:
        part, collective, candidate: of the rows.
        least: the other's time over the candidate's or, against "the ceiling", the fraction of the copy bandwidth.
    """

    name: str
    part: str
    against: str
    least: float
    ranks: int
    sizes: tuple[int, ...] = LARGE
    dtypes: tuple[str, ...] = BOTH
    collective: str = "allreduce"
    candidate: str = "direct"

    def line(self, rows: Sequence[Row]) -> Line:
        """Its line in the table."""
        found = list(self._cases(rows))
        text = ratio_text(self.least, self.against)
        if not found:
            return Line.unmeasured(self.name, self.against, text)
        value, case, times = min(found)
        cases = {name: rounded(ratio) for ratio, name, _ in sorted(found, reverse=True)}
        shown = ratio_text(value, self.against, goal=False)
        return Line(self.name, self.against, text, shown, value >= self.least, f"{case}: {times}", cases)

    def _cases(self, rows: Sequence[Row]) -> Iterator[tuple[float, str, str]]:
        for nbytes, dtype in itertools.product(self.sizes, self.dtypes):
            wanted = (self.part, self.collective, dtype, self.ranks, nbytes)
            here = [r for r in rows if (r.part, r.collective, r.dtype, r.ranks, r.nbytes) == wanted]
            mine = [row for row in here if row.candidate == self.candidate]
            others = [row for row in here if row.candidate == self.against]
            case = f"{format_size(nbytes)}, {dtype}"
            if self.against == "the ceiling":
                yield from ((row.of_ceiling, case, format_time(row.seconds)) for row in mine)
            for ours, theirs in zip(mine, others, strict=False):  # of each run, such as with other settings of NCCL
                times = times_text(ours.seconds, theirs.seconds)
                yield paired_ratio(ours.rounds, theirs.rounds).median, case, times


@dataclass(frozen=True)
class Limit:
    """A time of `direct` that must not be exceeded, in seconds, in a graph of calls."""

    name: str
    nbytes: int
    ranks: int
    most: float

    def line(self, rows: Sequence[Row]) -> Line:
        """Its line in the table."""
        wanted = ("small", "direct", "allreduce", self.ranks, self.nbytes)
        here = [r for r in rows if (r.part, r.candidate, r.collective, r.ranks, r.nbytes) == wanted]
        text = f"<= {format_time(self.most)}"
        if not here:
            return Line.unmeasured(self.name, "", text)
        seconds = here[0].seconds
        return Line(self.name, "", text, format_time(seconds), seconds <= self.most, "", {"seconds": seconds})


@dataclass(frozen=True)
class Footprint:
    """The rate of an allreduce on few multiprocessors, as a share of the highest.

    A block of ours fills a multiprocessor; all ranks are on one GPU. The best tile size counts.
    """

    name: str
    least: float
    ranks: int
    multiprocessors: int
    nbytes: int = LARGE[1]

    def line(self, rows: Sequence[Row]) -> Line:
        """Its line in the table."""
        found = {dtype: share for dtype in BOTH if (share := self._share(rows, dtype)) is not None}
        text = f">= {self.least:.2f}"
        if not found:
            return Line.unmeasured(self.name, "", text)
        worst = min(found, key=found.__getitem__)
        return Line(self.name, "", text, f"{found[worst]:.2f}", found[worst] >= self.least, worst, dict(found))

    def _share(self, rows: Sequence[Row], dtype: str) -> float | None:
        wanted = ("allreduce", dtype, self.ranks, self.nbytes)
        here = [r for r in rows if r.part.startswith("tile ") and (r.collective, r.dtype, r.ranks, r.nbytes) == wanted]
        few = [row.seconds for row in here if row.channels * self.ranks <= self.multiprocessors]
        return min(row.seconds for row in here) / min(few) if few else None


GOALS: tuple[Goal | Limit | Footprint, ...] = (
    Goal("allreduce, 8 ranks, 256 MiB each", "sweep", "the ceiling", 0.9, 8, LARGE[1:]),
    *(Goal(f"allreduce, {n} ranks", "nccl", "nccl", least, n) for n, least in ((2, 1.5), (4, 2.0), (8, 2.3))),
    *(
        Goal(f"allreduce by {name}, 8 ranks, 256 MiB each", "nccl", "nccl", 1.0, 8, LARGE[1:], candidate=name)
        for name in ("ring", "tree", "wheel")
    ),
    *(Goal(f"allreduce, {n} ranks", "torch", "torch sum and copies", 1.2, n) for n in (2, 4, 8)),
    Limit("allreduce, 8 ranks, 8 KiB, in a graph", 8 * KIB, 8, 4e-6),
    Goal("allreduce, 8 ranks, 8 KiB, in a graph", "nccl", "nccl", 3, 8, (8 * KIB,), ("float32",)),
    Goal("broadcast, 8 ranks", "copies", "7 copies", 1.5, 8, dtypes=("float32",), collective="broadcast"),
    Goal("broadcast, 8 ranks, 256 MiB", "nccl", "nccl", 1.5, 8, LARGE[1:], collective="broadcast"),
    Goal("allreduce, 8 ranks, staged", "staged", "direct", 0.4, 8, LARGE[1:], candidate="direct, staged"),
    Footprint("rate on 16 multiprocessors, of the highest, 8 ranks, 256 MiB each", 0.5, 8, 16),
)


def lines(rows: Sequence[Row], checks: Sequence[Check]) -> list[Line]:
    """Every goal's line; last, whether all results were bitwise identical."""
    found = [goal.line(rows) for goal in GOALS]
    same = all(check.passed for check in checks) if checks else None
    text = {None: "-", True: "identical", False: "different"}[same]
    where = "; ".join(f"{check.name}: {check.text}" for check in checks)
    return [*found, Line("bits of direct, float32", "", "identical", text, same, where, {})]
