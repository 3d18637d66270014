"""The table of goals: a line for each, on a terminal and in Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.table import Table

from pycollective.cli.units import format_time

from ..result import Provenance
from ..row import Line

__all__ = ["about", "line_table", "markdown", "markdown_table", "ratio_text", "times_text"]


def ratio_text(value: float, against: str, goal: bool = True) -> str:
    """A ratio in the form of its goal: 2x, 90% of the ceiling, at most 1.2x the time; rounded against us."""
    if against == "float32":
        return f"<= {1 / value:.3g}x" if goal else f"{math.ceil(100 / value) / 100:.2f}x"
    if against == "the ceiling":
        return f">= {value:.0%}" if goal else f"{math.floor(100 * value)}%"
    return f">= {value:g}x" if goal else f"{math.floor(100 * value) / 100:.{2 if value < 10 else 1}f}x"


def times_text(ours: float, theirs: float) -> str:
    """Two times in seconds."""
    return f"{format_time(ours)} against {format_time(theirs)}"


def line_table(lines: Sequence[Line]) -> Table:
    """The table for a terminal."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "against", "goal", "measured", "met", "where it is worst"):
        table.add_column(heading, justify="right" if heading in ("goal", "measured") else "left")
    for line in lines:
        met = {True: "[green]yes[/]", False: "[bold red]no[/]", None: "[yellow]-[/]"}[line.met]
        table.add_row(line.row, line.against, line.goal, line.measured, met, line.worst)
    return table


def markdown(lines: Sequence[Line], provenance: Provenance, command: str) -> str:
    """The table for docs/performance.md, with the command that produced it and the machine."""
    return f"{markdown_table(lines)}\n{about(provenance, command)}\n"


def about(provenance: Provenance, command: str) -> str:
    """The command that produced a table, the machine, the libraries."""
    libraries = ", ".join(filter(None, provenance.libraries.values()))
    flags = provenance.yield_when_idle.items()
    yields = "; ".join(f"{ranks} ranks: mpi_yield_when_idle={flag}" for ranks, flag in flags if flag != "-")
    mpi = f"Open MPI with {yields}. " if yields else ""
    return (
        f"`python -I -m pycollective.bench.{command}` on {provenance.date[:10]}: {provenance.cpu}, "
        f"{provenance.cores} cores, Python {provenance.python}, NumPy {provenance.numpy}; {libraries}. "
        f"{mpi}Ratios are medians over paired rounds."
    )


def markdown_table(lines: Sequence[Line]) -> str:
    """The lines as a Markdown table."""
    text = ["| | against | goal | measured | met | where it is worst |", "|---|---|--:|--:|---|---|"]
    for line in lines:
        met = {True: "yes", False: "**no**", None: "-"}[line.met]
        text.append(f"| {line.row} | {line.against} | {line.goal} | {line.measured} | {met} | {line.worst} |")
    return "\n".join(text) + "\n"
