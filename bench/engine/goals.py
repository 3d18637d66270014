"""The rows of the engine's speed table: what is measured for each, and how it is evaluated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ..measurement.stats import paired_ratio
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
    against = "" if isinstance(goal, Limit) else goal.theirs
    ours, theirs = here.get(goal.ours), here.get(against)
    if ours is None or (against and theirs is None):
        return Line(goal.name, against, _text(goal), "-", None, "", {})
    shown, met, cases = _outcome(goal, ours, theirs or ours)
    where = f"{format_time(ours.time_us / 1e6)} against {format_time(theirs.time_us / 1e6)}" if theirs else ""
    return Line(goal.name, against, _text(goal), shown, met, where, cases)


def _text(goal: Goal) -> str:
    """The goal as in the table."""
    match goal:
        case Comparison():
            return ratio_text(goal.least, goal.theirs)
        case Overhead():
            return f"<= {goal.most:g}x"
        case Added():
            return f"<= {format_time(goal.most)} more"
        case Limit():
            return f"<= {format_time(goal.most)}"


def _outcome(goal: Goal, ours: EngineRow, base: EngineRow) -> tuple[str, bool, dict[str, float]]:
    """What was measured, as in the table; whether it meets the goal; and in figures."""
    match goal:
        case Comparison():
            ratio = paired_ratio(ours.rounds_us, base.rounds_us)
            return ratio_text(ratio.median, goal.theirs, goal=False), ratio.median >= goal.least, ratio.figures()
        case Overhead():
            ratio = paired_ratio(base.rounds_us, ours.rounds_us)
            return f"{math.ceil(100 * ratio.median) / 100:.2f}x", ratio.median <= goal.most, ratio.figures()
        case Added():
            seconds = median((a - b) / 1e6 for a, b in zip(ours.rounds_us, base.rounds_us, strict=True))
            shown = f"{format_time(abs(seconds))} {'more' if seconds > 0 else 'less'}"
            return shown, seconds <= goal.most, {"seconds": seconds}
        case Limit():
            seconds = ours.time_us / 1e6
            return format_time(seconds), seconds <= goal.most, {goal.ours: seconds}
