"""The rows of the engine's speed table: what is measured for each, and how it is evaluated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ..measurement.stats import Ratio, paired_ratio
from ..report.table import format_time
from ..speed import Line, ratio_text
from .result import EngineRow

__all__ = ["GOALS", "LAYERS", "Added", "Comparison", "Goal", "Limit", "Overhead", "line_of"]


@dataclass(frozen=True)
class Comparison:
    """Two contenders of a group; ``least`` is the smallest ratio (theirs over ours) that meets the goal."""

    name: str
    group: str
    ours: str
    theirs: str
    least: float


@dataclass(frozen=True)
class Limit:
    """A contender's time that must not be exceeded, in seconds."""

    name: str
    group: str
    ours: str
    most: float


@dataclass(frozen=True)
class Overhead:
    """Two contenders of a group; ``most`` is the largest ratio (ours over the base) that meets the goal."""

    name: str
    group: str
    ours: str
    theirs: str
    most: float


@dataclass(frozen=True)
class Added:
    """Two contenders of a group; ``most`` is what a call of ours may take longer than one of theirs, in seconds."""

    name: str
    group: str
    ours: str
    theirs: str
    most: float


Goal = Comparison | Limit | Overhead | Added


def _resnet(ours: str) -> Comparison:
    return Comparison(f"ResNet-50's gradients: {ours}", "resnet50", ours, "Gloo, DDP's buckets", 5)


GOALS: tuple[Goal, ...] = (
    _resnet("grouped_allreduce"),
    _resnet("grouped_allreduce_"),
    _resnet("engine"),
    Comparison("ResNet-50's gradients: bucket views", "resnet50", "engine, views", "engine", 1.8),
    Limit("8 bytes, submit to synchronized: engine", "8 bytes", "engine", 100e-6),
    Limit("8 bytes, submit to synchronized: allreduce_", "8 bytes", "allreduce_", 100e-6),
    Limit("16 MiB: engine", "16 MiB", "engine", 3e-3),
    Comparison("16 MiB: engine", "16 MiB", "engine", "MPI", 2.33),
    Comparison("16 MiB: allreduce_", "16 MiB", "allreduce_", "MPI", 2.33),
    Comparison("a small CNN's training step", "training", "DistributedOptimizer", "DDP on Gloo", 1),
    Comparison("161 tensors of 1 KiB: grouped_allreduce", "small", "grouped_allreduce", "Gloo, one by one", 10),
    Comparison("161 tensors of 1 KiB: engine", "small", "engine", "Gloo, one by one", 10),
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
    Comparison("8 bytes: dist.all_reduce, async and wait", "layers", "dist.all_reduce, later", "Gloo, later", 1),
    Comparison("256 KiB there and back: c10d", "messages", "send and recv", "Gloo", 5),
    Comparison("161 tensors of 1 KiB: grouped_allreduce", "small", "grouped_allreduce", "Gloo, coalesced", 10),
    Comparison("161 tensors of 1 KiB: grouped_allreduce_", "small", "grouped_allreduce_", "Gloo, coalesced", 10),
    Comparison("a small CNN's training step", "training", "DistributedOptimizer", "DDP on Gloo", 1.3),
    _resnet("grouped_allreduce"),
    _resnet("engine"),
)
"""What each layer above the core adds."""


def line_of(goal: Goal, rows: Sequence[EngineRow], ranks: int) -> Line:
    """The goal's line in the table, from the rows with this many ranks."""
    here = {row.contender: row for row in rows if (row.group, row.ranks) == (goal.group, ranks)}
    ours = here.get(goal.ours)
    if isinstance(goal, Limit):
        text = f"<= {format_time(goal.most)}"
        if ours is None:
            return Line(goal.name, "", text, "-", None, "", {})
        seconds = ours.time_us / 1e6
        return Line(goal.name, "", text, format_time(seconds), seconds <= goal.most, "", {goal.ours: seconds})
    theirs = here.get(goal.theirs)
    if isinstance(goal, Overhead):
        return _overhead_line(goal, ours, theirs)
    if isinstance(goal, Added):
        return _added_line(goal, ours, theirs)
    text = ratio_text(goal.least, goal.theirs)
    if ours is None or theirs is None:
        return Line(goal.name, goal.theirs, text, "-", None, "", {})
    ratio = paired_ratio(ours.rounds_us, theirs.rounds_us)
    shown = ratio_text(ratio.median, goal.theirs, goal=False)
    return Line(goal.name, goal.theirs, text, shown, ratio.median >= goal.least, _both(ours, theirs), _cases(ratio))


def _overhead_line(goal: Overhead, ours: EngineRow | None, base: EngineRow | None) -> Line:
    text = f"<= {goal.most:g}x"
    if ours is None or base is None:
        return Line(goal.name, goal.theirs, text, "-", None, "", {})
    ratio = paired_ratio(base.rounds_us, ours.rounds_us)
    shown = f"{math.ceil(100 * ratio.median) / 100:.2f}x"
    return Line(goal.name, goal.theirs, text, shown, ratio.median <= goal.most, _both(ours, base), _cases(ratio))


def _added_line(goal: Added, ours: EngineRow | None, base: EngineRow | None) -> Line:
    text = f"<= {format_time(goal.most)} more"
    if ours is None or base is None:
        return Line(goal.name, goal.theirs, text, "-", None, "", {})
    seconds = median((a - b) / 1e6 for a, b in zip(ours.rounds_us, base.rounds_us, strict=True))
    shown = f"{format_time(abs(seconds))} {'more' if seconds > 0 else 'less'}"
    return Line(goal.name, goal.theirs, text, shown, seconds <= goal.most, _both(ours, base), {"seconds": seconds})


def _both(ours: EngineRow, theirs: EngineRow) -> str:
    return f"{format_time(ours.time_us / 1e6)} against {format_time(theirs.time_us / 1e6)}"


def _cases(ratio: Ratio) -> dict[str, float]:
    cases = {"low": ratio.low, "median": ratio.median, "high": ratio.high}
    return {name: float(f"{value:.4g}") for name, value in cases.items()}
