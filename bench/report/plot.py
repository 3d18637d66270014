"""A figure for each collective, type and operator: time and busbw over size, one column per rank count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pycollective.cli.outputs import pictures
from pycollective.schedule.drawing.style import PALETTE, STYLE, make_logarithmic

from ..result import Row
from ..workload.cases import format_size
from ..workload.plan import NAMES, OURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_rows"]

# Grey for other libraries.
_THEIRS = {
    **dict.fromkeys(("openmpi", "mpich", "mpi"), ("#222222", "s")),
    "impi": ("#555555", "s"),
    "gloo": ("#888888", "^"),
}
Line = tuple[str, str, str]  # library, topology, path


def plot_rows(rows: Sequence[Row], where: Path, suffix: str = "svg") -> list[Path]:
    """Draw all rows; returns the files written, one for each (collective, type, op).

    ``where`` is a folder, or the file of a single picture; with several it is the stem.
    """
    import matplotlib

    matplotlib.use("Agg")
    rows = [row for row in rows if row.size]  # a barrier has no size
    kinds = list(dict.fromkeys((row.collective, row.type, row.op) for row in rows))
    labels = [f"{collective}-{dtype}" + ("" if op in ("sum", "none") else f"-{op}") for collective, dtype, op in kinds]
    if where.is_dir() or not where.suffix:
        where.mkdir(parents=True, exist_ok=True)
        written = [where / f"{label}.{suffix}" for label in labels]
    else:
        written = pictures(where, labels)
    for (collective, dtype, op), path in zip(kinds, written, strict=True):
        chosen = [row for row in rows if (row.collective, row.type, row.op) == (collective, dtype, op)]
        title = f"{collective}, {dtype}" + ("" if op == "none" else f", {op}")
        with matplotlib.rc_context(STYLE):
            _figure(chosen, title, path)
    return written


def _figure(rows: Sequence[Row], title: str, path: Path) -> None:
    from matplotlib import pyplot

    counts = sorted({row.ranks for row in rows})
    styles = _styles(rows)
    figure, axes = pyplot.subplots(
        2,
        len(counts),
        sharex=True,
        sharey="row",
        squeeze=False,
        figsize=(1.6 + 3.6 * max(len(counts), 2), 8),
    )
    for column, ranks in enumerate(counts):
        here = [row for row in rows if row.ranks == ranks]
        for line, style in styles.items():
            points = sorted((row.size, row.time_us, row.busbw) for row in here if _line(row) == line)
            for axis, which in ((axes[0][column], 1), (axes[1][column], 2)):
                values = [point[which] for point in points]
                if any(value > 0 for value in values):
                    axis.plot([point[0] for point in points], values, **style)
        axes[0][column].set_title(f"{ranks} ranks")
        for axis in axes[:, column]:
            _scale(axis, [row.size for row in rows])
        axes[1][column].set_xlabel("size")
    top = max(row.busbw for row in rows)
    if top > 0:  # the bandwidth of small messages is too low to show
        axes[1][0].set_ylim(max(top / 2e4, min(row.busbw for row in rows if row.busbw > 0) / 2), top * 2)
    axes[0][0].set_ylabel("time (us), less is better")
    axes[1][0].set_ylabel("busbw (GB/s), more is better")
    handles = [pyplot.Line2D([], [], **style) for style in styles.values()]
    figure.suptitle(title, x=0.012, ha="left", fontweight="bold", fontsize=13)
    figure.tight_layout(rect=(0, 0, 1, 0.99))
    figure.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, bbox_inches="tight", dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _line(row: Row) -> Line:
    return row.library, row.topology, row.path if row.arrays == "numpy" else f"{row.path}, {row.arrays}"


def _styles(rows: Iterable[Row]) -> dict[Line, dict[str, Any]]:
    """A colour for each of our topologies, dots for plain arrays, grey dashes for the other libraries."""
    lines = list(dict.fromkeys(_line(row) for row in rows))
    topologies = list(dict.fromkeys(topology for library, topology, _ in lines if library == OURS))
    several = len({path for library, _, path in lines if library == OURS}) > 1
    styles: dict[Line, dict[str, Any]] = {}
    for library, topology, path in sorted(
        lines,
        key=lambda line: (
            line[0] != OURS,
            topologies.index(line[1]) if line[0] == OURS else 0,
            line[2] != "windows",
        ),
    ):
        if library == OURS:
            label = f"{topology or 'default'}, {path}" if several else topology or "default"
            colour = PALETTE[topologies.index(topology) % len(PALETTE)]
            style = {"color": colour, "linestyle": "-", "marker": "o", "markersize": 3, "linewidth": 1.6}
            if "torch" in path:
                style |= {"marker": "x", "markersize": 5}
            if several and not path.startswith("windows"):
                style |= {"linestyle": (0, (1.2, 1.2)), "alpha": 0.75}
                style |= {"marker": ""} if path == "plain" else {}
        else:
            label = NAMES.get(library, library)
            colour, marker = _THEIRS.get(library, ("#555555", "D"))
            style = {
                "color": colour,
                "linestyle": (0, (5, 2)),
                "marker": marker,
                "markersize": 4,
                "linewidth": 1.8,
            }
        styles[library, topology, path] = {"label": label, **style}
    return styles


def _scale(axis: Axes, sizes: Sequence[int]) -> None:
    """Log-log, sizes marked in powers of 1024 and their quarters."""
    axis.set_xscale("log", base=2)
    make_logarithmic(axis)
    low, high = min(sizes), max(sizes)
    ticks = [4**k for k in range(20) if low <= 4**k <= high] or [low]
    ticks = ticks[:: 1 + len(ticks) // 7]
    axis.set_xticks(ticks, [format_size(tick).replace(" ", "\u2009") for tick in ticks], rotation=40, ha="right")
    axis.minorticks_off()
