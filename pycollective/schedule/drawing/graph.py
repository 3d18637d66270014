"""Ranks and arrows between them: the data that a schedule moves in a call, or the weights of a graph of neighbours."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pycollective.schedule.compiler.schedule import Schedule
from pycollective.schedule.compiler.steps import RECV
from pycollective.schedule.drawing.style import INK, PALETTE

_EDGE, _NODE = PALETTE[0], "#e0e7ff"
_HOSTS = ("#e0e7ff", "#fde68a", "#bbf7d0", "#fecaca", "#e9d5ff", "#bae6fd")

Point = tuple[float, float]
Weights = Mapping[int, float]
"""{source: weight} of one rank."""


def traffic(schedule: Schedule) -> Counter[tuple[int, int]]:
    """(from, to) -> the number of chunks moved between two ranks: read by the one, or written by the other."""
    moved: Counter[tuple[int, int]] = Counter()
    for rank, mine in enumerate(schedule.ranks):
        for step in mine.steps:
            if step.kind == RECV:  # counted where it is sent
                continue
            moved.update((source.rank, rank) for source in step.sources if source.rank != rank)
            moved.update((rank, target.rank) for target in step.targets if target.rank != rank)
    return moved


def figure(schedule: Schedule) -> Any:
    """The picture as a matplotlib Figure: the width of an arrow shows the amount of data."""
    from matplotlib.figure import Figure

    moved = traffic(schedule)
    side = min(12.0, 3.6 + 0.28 * schedule.size)
    picture = Figure(figsize=(side, side + 0.9), dpi=150, layout="constrained")
    axes = picture.subplots()
    places = layout(axes, schedule.size, moved)
    widths = _draw_arrows(axes, places, moved)
    draw_ranks(axes, places, schedule.hosts, bold=schedule.root)
    picture.suptitle(schedule.heading, x=0.02, ha="left", fontsize=11, fontweight="bold", color=INK)
    _draw_legend(picture, moved, schedule, widths)
    return picture


def neighbours_figure(steps: Sequence[Sequence[Weights]], title: str, subtitle: str = "") -> Any:
    """The steps of a graph of neighbours side by side, as a matplotlib Figure: an arrow from each source to its reader.

    Args:
        steps: for each step the weights of each rank, the rank's own among them; widths of arrows show them.
        title, subtitle: above the picture.
    """
    from matplotlib.figure import Figure

    size = len(steps[0])
    side = min(8.0, 3.0 + 0.2 * size)
    picture = Figure(figsize=(side * len(steps), side + 0.9), dpi=150, layout="constrained")
    for step, (axes, rows) in enumerate(zip(picture.subplots(1, len(steps), squeeze=False)[0], steps, strict=True)):
        places = circle(axes, size)
        read = {(source, rank): w for rank, row in enumerate(rows) for source, w in row.items() if source != rank}
        _draw_arrows(axes, places, read)
        draw_ranks(axes, places)
        own = sorted({f"{row.get(rank, 0):.3g}" for rank, row in enumerate(rows)})
        others = sorted({f"{weight:.3g}" for weight in read.values()})
        weights = f"own weight {_listed(own)}; neighbours' {_listed(others)}"
        axes.set_title(f"step {step}" if len(steps) > 1 else "", fontsize=10)
        axes.text(0, -1.32, weights, ha="center", fontsize=7, color=INK)
    picture.suptitle(f"{title}\n{subtitle}".strip(), x=0.02, ha="left", fontsize=10, fontweight="bold", color=INK)
    return picture


def _listed(numbers: list[str]) -> str:
    return "none" if not numbers else ", ".join(numbers) if len(numbers) < 4 else f"{numbers[0]} to {numbers[-1]}"


def layout(axes: Any, size: int, moved: Iterable[tuple[int, int]]) -> list[Point]:
    """The places of the ranks: by networkx (Kamada, Kawai 1989) if it is installed and few of them exchange data."""
    places = circle(axes, size)
    pairs = {(min(pair), max(pair)) for pair in moved}
    if not size <= len(pairs) + 1 <= 2 * size:
        return places
    try:
        import networkx
        import scipy  # noqa: F401  networkx needs it for this layout

        graph = networkx.Graph(sorted(pairs))
        if len(graph) < size or not networkx.is_connected(graph):
            return places
        found = networkx.kamada_kawai_layout(graph, pos=dict(enumerate(places)))
    except ImportError:
        return places
    return [(float(found[rank][0]), float(found[rank][1])) for rank in range(size)]


def circle(axes: Any, size: int) -> list[Point]:
    """The places of the ranks, clockwise from the top, in axes that are prepared for them."""
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_xlim(-1.22, 1.22)
    axes.set_ylim(-1.22, 1.22)
    angles = [math.tau * rank / size for rank in range(size)]
    return [(math.sin(angle), math.cos(angle)) for angle in angles]


def draw_ranks(axes: Any, places: Sequence[Point], hosts: Sequence[int] = (), bold: int | None = None) -> None:
    """The ranks' numbers in circles, in the colour of the host; that of the rank `bold` in bold."""
    for rank, place in enumerate(places):
        colour = _host_colour(hosts[rank]) if hosts else _NODE
        axes.plot(*place, "o", markersize=19, color=colour, markeredgecolor=INK, markeredgewidth=1.2, zorder=3)
        weight = "bold" if rank == bold else "normal"
        axes.text(*place, str(rank), ha="center", va="center", fontsize=9, color=INK, weight=weight, zorder=4)


def _draw_arrows(axes: Any, places: Sequence[Point], amounts: Mapping[tuple[int, int], float]) -> dict[float, float]:
    """Draw an arrow for each pair of ranks, the widest last; lighter in a crowded picture.

    Returns:
        the width for each amount.
    """
    most = max(map(abs, amounts.values()), default=1)
    crowded = len(amounts) > 40
    widths = {amount: (0.3 + 1.2 * abs(amount) / most) * (1 if crowded else 2) for amount in amounts.values()}
    for (giver, taker), amount in sorted(amounts.items(), key=lambda item: abs(item[1])):
        arrow = {
            "arrowstyle": "-|>,head_length=0.4,head_width=0.2",
            "connectionstyle": "arc3,rad=0.09",  # so that the two directions are separate lines
            "color": _EDGE,
            "linewidth": widths[amount],
            "alpha": 0.5 if crowded else 0.85,
            "shrinkA": 11,
            "shrinkB": 11,
        }
        axes.annotate("", xy=places[taker], xytext=places[giver], zorder=1, arrowprops=arrow)
    return widths


def _host_colour(host: int) -> str:
    return _HOSTS[host % len(_HOSTS)]


def _draw_legend(
    picture: Any, moved: Counter[tuple[int, int]], schedule: Schedule, widths: Mapping[float, float]
) -> None:
    """The legend of the widths, as fractions of the buffer, and of the hosts."""
    from matplotlib.lines import Line2D

    entries = []
    for count in sorted({min(moved.values()), max(moved.values())} if moved else ()):
        share = f"{count / schedule.chunks:.3g} times the buffer"
        entries.append(Line2D([], [], color=_EDGE, linewidth=widths[count], label=share))
    for host in sorted(set(schedule.hosts)):
        disc = {"linestyle": "", "marker": "o", "markersize": 9, "markeredgecolor": INK}
        entries.append(Line2D([], [], color=_host_colour(host), label=f"host {host}", **disc))
    entries.append(Line2D([], [], linestyle="", label=f"{len(moved)} pairs of ranks, {sum(moved.values())} movements"))
    picture.legend(handles=entries, loc="outside lower left", ncols=1, frameon=False, fontsize=8)
