"""The plot of `pycollective simulate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pycollective.cli.units import format_size
from pycollective.schedule import Simulation
from pycollective.schedule.drawing.style import STYLE


def plot(found: Sequence[Simulation], path: Path) -> None:
    """Time over size, a panel per rank count; or over ranks if there is one size. The suffix sets the format."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        _figure(found).savefig(path)


def _figure(found: Sequence[Simulation]) -> Any:
    from matplotlib.figure import Figure

    counts, sizes = sorted({one.ranks for one in found}), sorted({one.nbytes for one in found})
    over_ranks = len(sizes) == 1
    panels = [sizes[0]] if over_ranks else counts
    figure = Figure(figsize=(1.8 + 3.6 * len(panels), 4.2), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    names = list(dict.fromkeys(one.topology for one in found))
    for axis, panel in zip(axes, panels, strict=True):
        for name in names:
            chosen = [one for one in found if one.topology == name and (over_ranks or one.ranks == panel)]
            points = sorted((one.ranks if over_ranks else one.nbytes, one.seconds * 1e6) for one in chosen)
            axis.plot(*zip(*points, strict=True) if points else ((), ()), label=name, marker="o", markersize=3)
        axis.set_title(format_size(panel) if over_ranks else f"{panel} ranks")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        ticks = counts if over_ranks else sizes[:: 1 + len(sizes) // 7]
        axis.set_xticks(
            ticks, [str(tick) if over_ranks else format_size(tick) for tick in ticks], rotation=40, ha="right"
        )
        axis.minorticks_off()
        axis.set_xlabel("ranks" if over_ranks else "size")
    axes[0].set_ylabel("simulated time (us), less is better")
    figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside right upper")
    figure.suptitle(found[0].collective, x=0.012, ha="left", fontweight="bold")
    return figure
