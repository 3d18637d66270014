"""The plot of `pycollective simulate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pycollective.cli.units import format_size
from pycollective.schedule import Simulation

# Okabe and Ito's palette, suitable for colour-blind readers
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#5B3A8C")


def plot(found: Sequence[Simulation], path: Path) -> None:
    """Time over size, a panel per rank count; or over ranks if there is one size. The suffix sets the format."""
    from matplotlib.figure import Figure

    counts, sizes = sorted({one.ranks for one in found}), sorted({one.nbytes for one in found})
    over_ranks = len(sizes) == 1
    panels = [sizes[0]] if over_ranks else counts
    figure = Figure(figsize=(1.8 + 3.6 * len(panels), 4.2), dpi=150, layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    names = list(dict.fromkeys(one.topology for one in found))
    for axis, panel in zip(axes, panels, strict=True):
        for number, name in enumerate(names):
            chosen = [one for one in found if one.topology == name and (over_ranks or one.ranks == panel)]
            points = sorted((one.ranks if over_ranks else one.nbytes, one.seconds * 1e6) for one in chosen)
            style = {"color": _COLOURS[number % len(_COLOURS)], "marker": "o", "markersize": 3, "linewidth": 1.6}
            axis.plot(*zip(*points, strict=True) if points else ((), ()), label=name, **style)
        axis.set_title(
            format_size(panel) if over_ranks else f"{panel} ranks", loc="left", fontsize=10, fontweight="bold"
        )
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        ticks = counts if over_ranks else sizes[:: 1 + len(sizes) // 7]
        axis.set_xticks(
            ticks, [str(tick) if over_ranks else format_size(tick) for tick in ticks], rotation=40, ha="right"
        )
        axis.minorticks_off()
        axis.grid(color="#E3E3E3", linewidth=0.7)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlabel("ranks" if over_ranks else "size")
    axes[0].set_ylabel("simulated time (us), less is better")
    axes[-1].legend(frameon=False, fontsize=9)
    figure.suptitle(found[0].collective, x=0.012, ha="left", fontweight="bold")
    figure.savefig(path)
