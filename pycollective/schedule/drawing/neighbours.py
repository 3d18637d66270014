"""The steps of a graph of neighbours, side by side: ranks on a circle, and an arrow from each source to its reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pycollective.schedule.drawing.graph import circle, draw_arrow, draw_ranks
from pycollective.schedule.drawing.style import INK

Weights = Mapping[int, float]
"""{source: weight} of one rank."""


def figure(steps: Sequence[Sequence[Weights]], title: str, subtitle: str = "") -> Any:
    """The picture as a matplotlib Figure; the width of an arrow shows the weight.

    Args:
        steps: for each step the weights of each rank, the rank's own among them.
        title, subtitle: above the picture.
    """
    from matplotlib.figure import Figure

    size = len(steps[0])
    side = min(8.0, 3.0 + 0.2 * size)
    picture = Figure(figsize=(side * len(steps), side + 0.9), dpi=150, layout="constrained")
    for step, (axes, rows) in enumerate(zip(picture.subplots(1, len(steps), squeeze=False)[0], steps, strict=True)):
        places = circle(axes, size)
        read = {(source, rank): w for rank, row in enumerate(rows) for source, w in row.items() if source != rank}
        most = max(map(abs, read.values()), default=1)
        crowded = len(read) > 40
        for (source, rank), weight in read.items():
            width = (0.3 + 1.2 * abs(weight) / most) * (1 if crowded else 2)
            draw_arrow(axes, places[source], places[rank], width, crowded)
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
