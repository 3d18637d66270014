"""What `pycollective simulate` shows and writes: tables, JSON, CSV and plots."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pycollective.cli import outputs
from pycollective.cli.units import format_size, format_time
from pycollective.schedule import Network, Simulation
from pycollective.schedule.drawing.style import STYLE, make_logarithmic
from pycollective.schedule.simulator.fitting import Fit

_CELL, _FIRST_COLUMNS = 11, 20
"""Widths of a time with its mark, and of the columns before the topologies'."""


def write(
    found: Sequence[Simulation], network: Network, fitted: Fit | None, json_file: Path | None, csv_file: Path | None
) -> None:
    """Write the simulations as JSON and CSV."""
    rows = [_row(simulation) for simulation in found]
    # JSON has no infinity: null.
    plain = {name: None if value == math.inf else value for name, value in asdict(network).items()}
    document: dict[str, Any] = {"network": plain, "rows": rows}
    if fitted:
        document["fit"] = _fit_plain(fitted)
    outputs.write_json(json_file, "pycollective-simulation/1", document)
    if csv_file is not None:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        outputs.write_text(csv_file, text.getvalue())


def _row(simulation: Simulation) -> dict[str, Any]:
    """A simulation in JSON and CSV form: time in us, bandwidths in GB/s, like the bench."""
    kept = ("collective", "ranks", "topology", "root", "small", "messages", "bytes_sent", "bytes_most")
    return {
        **{name: getattr(simulation, name) for name in kept},
        "bytes_between_nodes": simulation.bytes_between_nodes,
        "size": simulation.nbytes,
        "steps": len(simulation.critical_path),
        "time_us": simulation.seconds * 1e6,
        "algbw": simulation.algbw,
        "busbw": simulation.busbw,
    }


def _fit_plain(fitted: Fit) -> dict[str, Any]:
    """A fit in JSON form; times in us."""
    rows = [
        {**asdict(one), "measured_us": one.seconds * 1e6, "fitted_us": seconds * 1e6}
        for one, seconds in zip(fitted.measurements, fitted.predicted, strict=True)
    ]
    for row in rows:
        del row["seconds"]
    errors = {name: getattr(fitted, f"{name}_error") for name in ("median", "rms", "largest")}
    return {"error": errors, "rows": rows}


def tables(found: Sequence[Simulation], width: int) -> list[Any]:
    """A row per size, a column per topology; as many tables as the width needs."""
    times: dict[tuple[int, int], dict[str, float]] = {}
    for simulation in found:
        times.setdefault((simulation.ranks, simulation.nbytes), {})[simulation.topology] = simulation.seconds
    parts: list[list[str]] = [[]]
    for name in dict.fromkeys(name for line in times.values() for name in line):
        wide = sum(max(len(one), _CELL) + 3 for one in [*parts[-1], name])
        if parts[-1] and _FIRST_COLUMNS + wide > width:
            parts.append([])
        parts[-1].append(name)
    return [_table(found[0].collective, times, names) for names in parts]


def _table(collective: str, times: dict[tuple[int, int], dict[str, float]], names: Sequence[str]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=collective, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.caption, table.caption_justify = "* the fastest", "left"
    for column in ("ranks", "size"):
        table.add_column(column, justify="right", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", overflow="fold", min_width=_CELL)
    keys = sorted(times)
    for at, key in enumerate(keys):
        least = min(times[key].values()) * (1 + 1e-9)
        cells = []
        for name in names:
            time = times[key].get(name)
            text = "-" if time is None else format_time(time)
            cells.append(f"[bold green]{text} *[/]" if time is not None and time <= least else f"{text}  ")
        last = at + 1 == len(keys) or keys[at + 1][0] != key[0]
        table.add_row(str(key[0]), format_size(key[1]), *cells, end_section=last)
    return table


def plot(found: Sequence[Simulation], path: Path, console: Any) -> None:
    """A picture for each collective; the suffix sets the format."""
    import matplotlib

    names = list(dict.fromkeys(one.collective for one in found))
    for name, file in zip(names, outputs.pictures(path, names), strict=True):
        with matplotlib.rc_context(STYLE):
            _figure([one for one in found if one.collective == name]).savefig(file)
        console.print(f"plot: {file}", highlight=False)


def _figure(found: Sequence[Simulation]) -> Any:
    """Time over size, a panel per rank count; or over ranks if there is one size."""
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
        make_logarithmic(axis)
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
