"""The goals of all programs but bench.gpu, whose rows are others: data, and how a goal of contenders is judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from pycollective.cli.units import format_time

from .measurement.stats import paired_ratio
from .peers.ceiling import CEILING
from .report.lines import ratio_text, times_text
from .row import Line
from .workload.cases import KIB, format_size
from .workload.plan import OURS

__all__ = [
    "BETTER_OF",
    "CALLS",
    "ENGINE",
    "HOSTS",
    "LAYERS",
    "LIMITS",
    "MIB",
    "NEIGHBOUR",
    "PEERS",
    "SPEED",
    "START",
    "START_RANKS",
    "WIRE",
    "Added",
    "Comparison",
    "Goal",
    "Limit",
    "Overhead",
    "Speedup",
    "call_goal",
    "mix_goal",
]

MIB = KIB**2

# -- calls against another library's: bench.speed, bench.calls, bench.mix and bench.hosts ----------------------------

BETTER_OF = "the better of Intel MPI and oneCCL"
PEERS = {
    "Open MPI": ("openmpi", "mpich", "mpi"),
    "Gloo": ("gloo",),
    "the ceiling": (CEILING,),
    "float32": (OURS,),
    BETTER_OF: ("impi", "oneccl"),
}


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


def _row(
    name: str, mpi: float, gloo: float, ranks: tuple[int, ...], sizes: tuple[int, ...], *paths: str
) -> Iterator[Comparison]:
    for peer, least in (("Open MPI", mpi), ("Gloo", gloo)):
        yield Comparison(name, peer, least, ranks, sizes, paths)


_SMALL, _LARGE = (4, 64, KIB), (64 * MIB,)
SPEED = (
    *_row("2 ranks, <= 1 KiB", 2, 20, (2,), _SMALL, "windows", "plain"),
    *_row("2 ranks, 64 KiB to 1 MiB, windows", 10, 20, (2,), (64 * KIB, 256 * KIB, MIB), "windows"),
    *_row("2 ranks, 64 MiB, windows", 5, 7, (2,), _LARGE, "windows"),
    *_row("4 ranks, 64 MiB, windows", 6, 8, (4,), _LARGE, "windows"),
    *_row("8 ranks, 64 MiB, windows", 8, 10, (8,), _LARGE, "windows"),
    *_row("2 to 8 ranks, 64 MiB, plain arrays (staged)", 2, 3, (2, 4, 8), _LARGE, "plain"),
    *_row("8 ranks, <= 1 KiB", 3, 10, (8,), _SMALL, "windows", "plain"),
    Comparison("bfloat16, 2 ranks, 64 MiB: time per byte", "float32", 1 / 1.2, (2,), _LARGE, dtype="bfloat16"),
    Comparison("broadcast, 2 ranks, 64 MiB", "Open MPI", 2, (2,), _LARGE, collective="broadcast"),
    Comparison("2 ranks, 64 MiB, windows, of the ceiling", "the ceiling", 0.9, (2,), _LARGE),
    *(
        Comparison(f"{name}, 4 ranks, 64 MiB", "Open MPI", 1, (4,), _LARGE, topologies=(name,))
        for name in ("ring", "tree", "wheel")
    ),
)
CALLS = tuple(
    Comparison(f"allreduce on plain arrays, {format_size(size)}", BETTER_OF, least, (2,), (size,), ("plain",))
    for size, least in ((8, 2.0), (64 * KIB, 1.5), (MIB, 1.3), (64 * MIB, 1.4))
)
"""What bench.calls shows where it has measured all of it."""


def call_goal(size: int, neighbours: int = 0) -> float:
    """The least ratio at a size: calls of up to some kilobytes are mostly latency.  Beside busy processes: ahead."""
    return 1.0 if neighbours else 1.2 if size < 64 * KIB else 1.5


def mix_goal(size: int, ranks: int, path: str, against: str) -> float | None:
    """Twice as fast as an MPI, from 64 KiB on three times; large arrays in windows at 90% of the ceiling."""
    if against != CEILING:
        return 2.0 if size < 64 * KIB else 3.0
    return 0.9 if path == "windows" and ranks == 2 and size >= 64 * MIB else None


_RATIOS = {
    "2x1": (1.15, 1.25, 1.8, 2.5),
    "4x1": (1.1, 1.7, 1.6, 2),
    "2x2": (2.5, 3.3, 4, 3),
    "2x4": (2.5, 2.7, 3.3, 2.4),
}
HOSTS = {
    (layout, size, "openmpi"): least
    for layout, row in _RATIOS.items()
    for size, least in zip((8, 64 * KIB, MIB, 64 * MIB), row, strict=True)
} | {("2x1", size, "gloo"): least for size, least in ((8, 5), (64 * KIB, 5), (64 * MIB, 1.3))}
"""(layout, size, peer) -> the smallest ratio, theirs over ours."""
WIRE = 0.97
"""Share of a limited bandwidth."""

# -- contenders and times: bench.engine, bench.layers, and the times without a peer of bench.speed ---------------------


@dataclass(frozen=True)
class Goal:
    """A contender of a group, against another one; ``bound``: what meets the goal."""

    name: str
    group: str
    ours: str
    theirs: str
    bound: float

    def text(self) -> str:
        """The goal as in the table."""
        raise NotImplementedError

    def judge(self, ours: Sequence[float], theirs: Sequence[float]) -> tuple[str, bool, dict[str, float]]:
        """What was measured, as in the table; whether it meets the goal; and in figures."""
        raise NotImplementedError

    def line(self, ours: Sequence[float] | None, theirs: Sequence[float] | None = None) -> Line:
        """The goal's line in the table, from microseconds in paired rounds; None: not measured."""
        if ours is None or (self.theirs and theirs is None):
            return Line.unmeasured(self.name, self.theirs, self.text())
        shown, met, cases = self.judge(ours, theirs or ours)
        where = times_text(median(ours) / 1e6, median(theirs) / 1e6) if theirs else ""
        return Line(self.name, self.theirs, self.text(), shown, met, where, cases)


class Speedup(Goal):
    """At least this ratio, theirs over ours."""

    def text(self) -> str:
        return ratio_text(self.bound, self.theirs)

    def judge(self, ours: Sequence[float], theirs: Sequence[float]) -> tuple[str, bool, dict[str, float]]:
        ratio = paired_ratio(ours, theirs)
        return ratio_text(ratio.median, self.theirs, goal=False), ratio.median >= self.bound, ratio.figures()


class Overhead(Goal):
    """At most this ratio, ours over theirs."""

    def text(self) -> str:
        return f"<= {self.bound:g}x"

    def judge(self, ours: Sequence[float], theirs: Sequence[float]) -> tuple[str, bool, dict[str, float]]:
        ratio = paired_ratio(theirs, ours)
        return f"{math.ceil(100 * ratio.median) / 100:.2f}x", ratio.median <= self.bound, ratio.figures()


class Added(Goal):
    """At most so many seconds more than theirs."""

    def text(self) -> str:
        return f"<= {format_time(self.bound)} more"

    def judge(self, ours: Sequence[float], theirs: Sequence[float]) -> tuple[str, bool, dict[str, float]]:
        seconds = median((a - b) / 1e6 for a, b in zip(ours, theirs, strict=True))
        shown = f"{format_time(abs(seconds))} {'more' if seconds > 0 else 'less'}"
        return shown, seconds <= self.bound, {"seconds": seconds}


class Limit(Goal):
    """At most so many seconds; ``theirs`` is empty."""

    def text(self) -> str:
        return f"<= {format_time(self.bound)}"

    def judge(self, ours: Sequence[float], theirs: Sequence[float]) -> tuple[str, bool, dict[str, float]]:
        seconds = median(ours) / 1e6
        return format_time(seconds), seconds <= self.bound, {self.ours: seconds}


LIMITS = (
    Limit("a schedule for 8 ranks compiled (the slowest topology)", "overheads", "compile", "", 20e-3),
    Limit("a cached call: allreduce of one element on one rank", "overheads", "call", "", 1e-6),
    Limit("import pycollective", "overheads", "import", "", 100e-3),
    Limit("init of 4 ranks, beyond mpirun's own start", "overheads", "init", "", 300e-3),
)
"""``ours``: a key of measurement/overheads.py's OVERHEADS."""


def _resnet(ours: str) -> Speedup:
    return Speedup(f"ResNet-50's gradients: {ours}", "resnet50", ours, "Gloo, DDP's buckets", 5)


ENGINE: tuple[Goal, ...] = (
    _resnet("grouped_allreduce"),
    _resnet("grouped_allreduce_"),
    _resnet("engine"),
    Speedup("ResNet-50's gradients: bucket views", "resnet50", "engine, views", "engine", 1.8),
    Limit("8 bytes, submit to synchronized: engine", "8 bytes", "engine", "", 100e-6),
    Limit("8 bytes, submit to synchronized: allreduce_", "8 bytes", "allreduce_", "", 100e-6),
    Limit("16 MiB: engine", "16 MiB", "engine", "", 3e-3),
    Speedup("16 MiB: engine", "16 MiB", "engine", "MPI", 2.33),
    Speedup("16 MiB: allreduce_", "16 MiB", "allreduce_", "MPI", 2.33),
    Speedup("a small CNN's training step", "training", "DistributedOptimizer", "DDP on Gloo", 1),
    Speedup("161 tensors of 1 KiB: grouped_allreduce", "small", "grouped_allreduce", "Gloo, one by one", 10),
    Speedup("161 tensors of 1 KiB: engine", "small", "engine", "Gloo, one by one", 10),
)
LAYERS: tuple[Goal, ...] = (
    Added("8 bytes: allreduce of a torch tensor", "layers", "allreduce, torch", "allreduce", 1e-6),
    Overhead("8 bytes: barrier", "layers", "barrier", "allreduce", 1.5),
    Overhead("8 bytes: nonblocking and wait", "layers", "iallreduce and wait", "allreduce", 4),
    Overhead("8 bytes: engine, submit and wait", "layers", "engine, submit and wait", "allreduce", 5),
    Overhead("8 bytes: engine, run", "layers", "engine, run", "allreduce", 5),
    Overhead("8 bytes: hvd.allreduce", "layers", "hvd.allreduce", "engine, run", 2),
    Overhead("8 bytes: dist.all_reduce", "layers", "dist.all_reduce", "idle group", 2),
    Overhead("8 bytes: dist.all_reduce, async and wait", "layers", "dist.all_reduce, later", "idle group, later", 3),
    Speedup("8 bytes: dist.all_reduce, async and wait", "layers", "dist.all_reduce, later", "Gloo, later", 1),
    Speedup("256 KiB there and back: c10d", "messages", "send and recv", "Gloo", 5),
    Speedup("161 tensors of 1 KiB: grouped_allreduce", "small", "grouped_allreduce", "Gloo, coalesced", 10),
    Speedup("161 tensors of 1 KiB: grouped_allreduce_", "small", "grouped_allreduce_", "Gloo, coalesced", 10),
    Speedup("a small CNN's training step", "training", "DistributedOptimizer", "DDP on Gloo", 1.3),
    _resnet("grouped_allreduce"),
    _resnet("engine"),
)
"""What each layer above the core adds."""

# -- times of whole jobs ---------------------------------------------------------------------------------------------

START_RANKS = 64
START = {"init": 2.0, "ring": 1.5, "halving_doubling": 2.0, "split": 1.0}
"""Seconds that stages of bench.scale with so many ranks may take on two cores."""
NEIGHBOUR = 3.0
"""The factor of ours beside a busy process, in bench.jobs, is to be at most this."""
