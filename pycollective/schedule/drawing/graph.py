"""The communication graph of a compiled schedule: ranks on a circle, and the data moved between them in a call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pycollective.schedule.compiler.schedule import Schedule
from pycollective.schedule.compiler.steps import RECV

INK, _PAPER, _EDGE, _NODE = "#1f2937", "white", "#2563eb", "#e0e7ff"

Point = tuple[float, float]


def traffic(schedule: Schedule) -> dict[tuple[int, int], int]:
    """(from, to) -> the number of chunks moved between two ranks: read by the one, or written by the other."""
    moved: dict[tuple[int, int], int] = {}
    for rank, mine in enumerate(schedule.ranks):
        for step in mine.steps:
            if step.kind == RECV:  # counted where it is sent
                continue
            pairs = [(source.rank, rank) for source in step.sources]
            pairs += [(rank, target.rank) for target in step.targets]
            for pair in pairs:
                if pair[0] != pair[1]:
                    moved[pair] = moved.get(pair, 0) + 1
    return moved


def figure(schedule: Schedule) -> Any:
    """The picture as a matplotlib Figure: the width of an arrow shows the amount of data."""
    from matplotlib.figure import Figure

    moved = traffic(schedule)
    side = min(12.0, 3.6 + 0.28 * schedule.size)
    picture = Figure(figsize=(side, side + 0.9), dpi=150, layout="constrained")
    axes = picture.subplots()
    places = circle(axes, schedule.size)
    most = max(moved.values(), default=1)
    crowded = len(moved) > 40

    def width(count: int) -> float:
        return (0.3 + 1.2 * count / most) * (1 if crowded else 2)

    for (giver, taker), count in sorted(moved.items(), key=lambda item: item[1]):
        draw_arrow(axes, places[giver], places[taker], width(count), crowded)
    draw_ranks(axes, places, bold=schedule.root)
    picture.suptitle(schedule.heading, x=0.02, ha="left", fontsize=11, fontweight="bold", color=INK)
    _draw_legend(picture, moved, schedule.chunks, width)
    return picture


def circle(axes: Any, size: int) -> list[Point]:
    """The places of the ranks, clockwise from the top, in axes that are prepared for them."""
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_xlim(-1.22, 1.22)
    axes.set_ylim(-1.22, 1.22)
    angles = [math.tau * rank / size for rank in range(size)]
    return [(math.sin(angle), math.cos(angle)) for angle in angles]


def draw_ranks(axes: Any, places: Sequence[Point], bold: int | None = None) -> None:
    """The ranks' numbers in circles; that of the rank `bold` in bold."""
    for rank, place in enumerate(places):
        axes.plot(*place, "o", markersize=19, color=_NODE, markeredgecolor=INK, markeredgewidth=1.2, zorder=3)
        weight = "bold" if rank == bold else "normal"
        axes.text(*place, str(rank), ha="center", va="center", fontsize=9, color=INK, weight=weight, zorder=4)


def draw_arrow(axes: Any, begin: Point, end: Point, width: float, crowded: bool) -> None:
    """From one rank to another; lighter in a crowded picture."""
    axes.annotate(
        "",
        xy=end,
        xytext=begin,
        zorder=1,
        arrowprops={
            "arrowstyle": "-|>,head_length=0.4,head_width=0.2",
            "connectionstyle": "arc3,rad=0.09",  # so that the two directions are separate lines
            "color": _EDGE,
            "linewidth": width,
            "alpha": 0.5 if crowded else 0.85,
            "shrinkA": 11,
            "shrinkB": 11,
        },
    )


def _draw_legend(picture: Any, moved: dict[tuple[int, int], int], chunks: int, width: Callable[[int], float]) -> None:
    """The legend of the widths, as fractions of the buffer."""
    from matplotlib.lines import Line2D

    entries = []
    for count in sorted({min(moved.values()), max(moved.values())} if moved else ()):
        share = f"{count / chunks:.3g} times the buffer"
        entries.append(Line2D([], [], color=_EDGE, linewidth=width(count), label=share))
    entries.append(Line2D([], [], linestyle="", label=f"{len(moved)} pairs of ranks, {sum(moved.values())} movements"))
    picture.legend(handles=entries, loc="outside lower left", ncols=1, frameon=False, fontsize=8)
