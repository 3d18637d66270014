"""Draws the pictures of README.md and docs/ from compiled schedules; nothing is drawn by hand."""

from __future__ import annotations

import io
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pycollective.schedule import Placement, Schedule, Step, compile, describe, drawing
from pycollective.schedule.drawing.compiled import compiled
from pycollective.schedule.drawing.diagram import step_times
from pycollective.schedule.drawing.style import INK, LANE, PALETTE, ink_on

RANKS = 8
REDUCE, COPY = "#c2410c", "#0284c7"

Point = tuple[float, float]
Edge = tuple[int, int, bool]
"""(from rank, to rank, into a reduction)."""
ENTERED = -0.95
"""The position of a rank's entry to the call, in the picture of the waits."""


def write(folder: Path) -> None:
    """Draw all into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for info in describe():
        if "allreduce" in info.collectives:
            figure = drawing.figure(compiled(info.name, "allreduce", RANKS))
            _save(figure, folder / f"{info.name}.png", dpi=110, colours=96)
    _save(topologies(), folder / "topologies.png")
    _save(waits(), folder / "waits.png")
    example = (Path(__file__).resolve().parents[2] / "examples" / "two_level.py").read_text()
    first = example.replace("p.sum((p[q, c] for q in owners), at=c)", "p.sum(p[q, c] for q in owners)")
    _draw_source(first, folder / "two_level_first.png")
    _draw_source(example, folder / "two_level.png")


# -- four topologies side by side ----------------------------------------------------------------------------------


def topologies() -> Any:
    """Ring, tree, wheel and direct: the graph above, time below, with a common time scale."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 6.4), dpi=110)
    names = ("ring", "tree", "wheel", "direct")
    schedules = [compile(name, "allreduce", RANKS, placement=Placement.WINDOW) for name in names]
    ends = [1 + max(max(lane, default=0) for lane in step_times(schedule)) for schedule in schedules]
    for column, (name, schedule) in enumerate(zip(names, schedules, strict=True)):
        left = 0.04 + 0.242 * column
        graph = figure.add_axes((left, 0.37, 0.225, 0.53))
        lanes = figure.add_axes((left, 0.095, 0.225, 0.24))
        figure.text(left + 0.1125, 0.945, name, ha="center", fontsize=17, fontweight="bold", color=INK)
        (_draw_trees if name == "tree" else _draw_graph)(graph, schedule)
        _draw_lanes(lanes, schedule, max(ends))
        if column == 0:
            lanes.set_yticks(
                range(RANKS), [f"rank {rank}" if rank == 0 else str(rank) for rank in range(RANKS)], fontsize=9
            )
            lanes.tick_params(length=0, labelcolor=INK)
        lanes.set_xlabel(f"{ends[column]} steps" if ends[column] > 1 else "1 step", fontsize=11, color=INK)
    key = figure.add_axes((0.04, 0.0, 0.95, 0.045))
    for x, colour, text in ((0.07, REDUCE, "read to reduce"), (0.25, COPY, "copied")):
        key.annotate("", (x + 0.035, 0.5), (x, 0.5), arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.8})
        key.text(x + 0.045, 0.5, text, va="center", fontsize=11, color=INK)
    for x, fill, text in ((0.46, INK, "step that reduces"), (0.64, "white", "step that copies; colour: chunk")):
        key.plot(x, 0.5, "o", color=INK, markerfacecolor=fill, markersize=8, markeredgewidth=2)
        key.text(x + 0.012, 0.5, text, va="center", fontsize=11, color=INK)
    key.set(xlim=(0, 1), ylim=(0, 1))
    key.axis("off")
    return figure


def _draw_graph(axes: Any, schedule: Schedule) -> None:
    """Ranks on a circle, the hub of a wheel in the centre."""
    edges = sorted(set(_transfers(schedule)))
    partners = [{b for a, b, _ in edges if a == r} | {a for a, b, _ in edges if b == r} for r in range(RANKS)]
    hubs = [r for r in range(RANKS) if len(partners[r]) == RANKS - 1]
    hub = hubs[0] if len(hubs) == 1 else None
    rim = [r for r in range(RANKS) if r != hub]
    at: dict[int, Point] = {} if hub is None else {hub: (0.0, 0.0)}
    for i, rank in enumerate(rim):
        angle = 2 * math.pi * i / len(rim)
        at[rank] = (math.sin(angle), math.cos(angle))
    crowded = len(edges) > 40
    for source, to, reduces in edges:
        bend = (0.06 if reduces else 0.16) if crowded else (0.1 if reduces else 0.26)
        _arrow(axes, at[source], at[to], reduces, bend, width=0.8 if crowded else 1.7, alpha=0.45 if crowded else 0.9)
    for rank, place in at.items():
        _node(axes, place, rank)
    axes.set(xlim=(-1.22, 1.22), ylim=(-1.22, 1.22), aspect="equal")
    axes.axis("off")


def _draw_trees(axes: Any, schedule: Schedule) -> None:
    """The two trees of chunks 0 and 1: one upright, one hanging, each over all ranks."""
    for chunk, sign in ((0, 1.0), (1, -1.0)):
        edges = sorted(set(_transfers(schedule, chunk)))
        parent = {source: to for source, to, reduces in edges if reduces}
        order = sorted(range(RANKS), key=lambda rank: rank if sign > 0 else -rank)
        at = {rank: (x - 3.5, sign * (0.75 + 1.15 * _height(rank, parent))) for x, rank in enumerate(order)}
        for source, to, reduces in edges:
            _arrow(axes, at[source], at[to], reduces, 0.12 if reduces else 0.16, width=1.5, alpha=0.9, shrink=8.5)
        for rank, place in at.items():
            _node(axes, place, rank, size=10)
    axes.set(xlim=(-4.1, 4.1), ylim=(-4.7, 4.7))
    axes.axhline(0, color=LANE, linewidth=1)
    axes.axis("off")


def _height(rank: int, parent: dict[int, int]) -> int:
    """Levels between a rank and its deepest leaf."""
    return max((1 + _height(child, parent) for child, above in parent.items() if above == rank), default=0)


def _transfers(schedule: Schedule, chunk: int | None = None) -> Iterator[Edge]:
    for rank, mine in enumerate(schedule.ranks):
        for step in mine.steps:
            if chunk in (None, step.chunk):
                yield from ((s.rank, rank, len(step.sources) > 1) for s in step.sources if s.rank != rank)
                yield from ((rank, t.rank, False) for t in step.targets if t.rank != rank)


def _arrow(
    axes: Any, source: Point, to: Point, reduces: bool, bend: float, width: float, alpha: float, shrink: float = 12
) -> None:
    style = {
        "arrowstyle": "-|>,head_width=0.22,head_length=0.4",
        "color": REDUCE if reduces else COPY,
        "linewidth": width,
        "alpha": alpha,
        "shrinkA": shrink,
        "shrinkB": shrink,
        "connectionstyle": f"arc3,rad={bend}",
    }
    axes.annotate("", xy=to, xytext=source, arrowprops=style)


def _node(axes: Any, place: Point, rank: int, size: float = 12) -> None:
    axes.plot(*place, "o", markersize=1.75 * size, color=INK, zorder=3)
    axes.text(*place, str(rank), ha="center", va="center", color="white", fontsize=size, fontweight="bold", zorder=4)


def _draw_lanes(axes: Any, schedule: Schedule, end: int) -> None:
    """A lane per rank, a dot per step; filled if it reduces."""
    for rank, (mine, times) in enumerate(zip(schedule.ranks, step_times(schedule), strict=True)):
        axes.axhline(rank, color=LANE, linewidth=1, zorder=0)
        for step, time in zip(mine.steps, times, strict=True):
            colour = PALETTE[step.chunk % len(PALETTE)]
            face = colour if len(step.sources) > 1 else "white"
            axes.plot(time, rank, "o", markersize=7.5, mfc=face, mec=colour, mew=2, zorder=2)
    axes.set(xlim=(-0.7, end - 0.3), ylim=(RANKS - 0.4, -0.6), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


# -- the waits of a compiled schedule ------------------------------------------------------------------------------


def waits() -> Any:
    """A ring allreduce on four ranks: the steps of each rank, and every wait that the compiler has kept."""
    from matplotlib.figure import Figure

    schedule = compile("ring", "allreduce", 4, placement=Placement.WINDOW)
    times = step_times(schedule)
    figure = Figure(figsize=(11, 4.4), dpi=110, layout="constrained")
    axes = figure.subplots()
    for rank, mine in enumerate(schedule.ranks):
        axes.text(-1.3, rank, f"rank {rank}", ha="right", va="center", fontsize=12, color=INK)
        axes.plot([ENTERED, times[rank][-1] + 0.5], [rank, rank], color=LANE, linewidth=6, zorder=0)
        axes.plot(ENTERED, rank, "|", color=INK, markersize=22, markeredgewidth=2)
        for step, time in zip(mine.steps, times[rank], strict=True):
            _draw_box(axes, time, rank, step)
            for wait in step.waits:
                done = times[wait.peer][wait.count - 1] + 0.33 if wait.count else ENTERED
                _draw_wait(axes, (done, wait.peer), (time - 0.33, rank), wait.count)
        exits = ", ".join(f"rank {wait.peer} ≥ {wait.count}" for wait in mine.exit_waits)
        text = f"leaves when {exits}"
        axes.text(times[rank][-1] + 0.55, rank, text, va="center", fontsize=9, color=INK, style="italic")
    axes.set(xlim=(-2.1, len(times[0]) + 0.4), ylim=(3.6, -0.6))
    axes.axis("off")
    return figure


def _draw_box(axes: Any, time: int, rank: int, step: Step) -> None:
    from matplotlib.patches import FancyBboxPatch

    colour = PALETTE[step.chunk]
    face, ink = (colour, ink_on(colour)) if len(step.sources) > 1 else ("white", colour)
    look = {"boxstyle": "round,pad=0.02", "fc": face, "ec": colour, "lw": 2, "zorder": 2}
    axes.add_patch(FancyBboxPatch((time - 0.3, rank - 0.19), 0.6, 0.38, **look))
    centred = {"ha": "center", "va": "center", "fontsize": 10, "fontweight": "bold"}
    axes.text(time, rank, f"chunk {step.chunk}", color=ink, zorder=3, **centred)


def _draw_wait(axes: Any, done: Point, begins: Point, count: int) -> None:
    style = {"arrowstyle": "-|>", "color": INK, "lw": 1.1, "shrinkA": 1, "shrinkB": 1}
    axes.annotate("", begins, done, arrowprops=style, zorder=1)
    circle = {"facecolor": "white", "edgecolor": INK, "boxstyle": "circle,pad=0.15", "lw": 0.8}
    centred = {"ha": "center", "va": "center", "fontsize": 8.5}
    axes.text(begins[0] + 0.03, begins[1] - 0.24, str(count), bbox=circle, zorder=4, **centred)


def _draw_source(source: str, file: Path) -> None:
    """Run `pycollective draw` on a topology in a separate process: two of one name cannot be registered."""
    with tempfile.TemporaryDirectory() as folder:
        topology, drawn = Path(folder, "topology.py"), Path(folder, "drawn.png")
        topology.write_text(source)
        command = [sys.executable, "-m", "pycollective.cli.main", "draw", str(topology), "--out", str(drawn)]
        # Not in the source tree, which -m would import from.
        subprocess.run([*command, "--ranks", str(RANKS)], check=True, cwd=folder, stdout=subprocess.DEVNULL)
        _shrink(drawn, file)


def _save(figure: Any, file: Path, dpi: int = 150, colours: int = 128) -> None:
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=dpi, facecolor="white")
    _shrink(drawn, file, colours)


def _shrink(png: Path | io.BytesIO, file: Path, colours: int = 128) -> None:
    """Reduce the number of colours, for a quarter of the size."""
    from PIL import Image

    Image.open(png).convert("RGB").quantize(colours, dither=Image.Dither.NONE).save(file, optimize=True)
