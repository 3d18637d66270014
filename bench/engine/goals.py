"""The rows of the engine's speed table: what is measured for each, and how it is evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..speed import Line, ratio_text
from ..stats import paired_ratio
from ..table import format_time
from .result import EngineRow

__all__ = ["GOALS", "Comparison", "Limit", "line_of"]


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


def _resnet(ours: str) -> Comparison:
    return Comparison(f"ResNet-50's gradients: {ours}", "resnet50", ours, "Gloo, DDP's buckets", 5)


GOALS: tuple[Comparison | Limit, ...] = (
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


def line_of(goal: Comparison | Limit, rows: Sequence[EngineRow], ranks: int) -> Line:
    """The goal's line in the table, from the rows with this many ranks."""
    here = {row.contender: row for row in rows if (row.group, row.ranks) == (goal.group, ranks)}
    ours = here.get(goal.ours)
    if isinstance(goal, Limit):
        text = f"<= {format_time(goal.most)}"
        if ours is None:
            return Line(goal.name, "", text, "-", None, "", {})
        seconds = ours.time_us / 1e6
        return Line(goal.name, "", text, format_time(seconds), seconds <= goal.most, "", {goal.ours: seconds})
    theirs, text = here.get(goal.theirs), ratio_text(goal.least, goal.theirs)
    if ours is None or theirs is None:
        return Line(goal.name, goal.theirs, text, "-", None, "", {})
    ratio = paired_ratio(ours.rounds_us, theirs.rounds_us)
    shown = ratio_text(ratio.median, goal.theirs, goal=False)
    where = f"{format_time(ours.time_us / 1e6)} against {format_time(theirs.time_us / 1e6)}"
    cases = {"low": ratio.low, "median": ratio.median, "high": ratio.high}
    met = ratio.median >= goal.least
    rounded = {name: float(f"{value:.4g}") for name, value in cases.items()}
    return Line(goal.name, goal.theirs, text, shown, met, where, rounded)
