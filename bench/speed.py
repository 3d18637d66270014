"""``python -m bench.speed``: measures the speed table.

Every figure is a ratio against a peer in the same rounds (median of paired ratios), each library in the faster of its
two forms (in place or out of place).  A row of several sizes, rank counts or memories shows its worst case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from .goals import BETTER_OF, GOALS, LIMITS, Comparison, groups_for, outcome_of
from .report.table import format_time
from .result import Provenance, Result, Row, to_json
from .workload.plan import NAMES, Budget, Conditions, Plan

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "SCHEMA",
    "Line",
    "about",
    "line_of",
    "markdown",
    "markdown_table",
    "ratio_text",
    "show",
    "speed",
    "table_of",
]

SCHEMA = "pycollective-speed/1"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@dataclass(frozen=True)
class Line:
    """One figure of the table."""

    row: str
    against: str  # "Open MPI", "Gloo", "the ceiling", "float32", or "" for a plain time
    goal: str
    measured: str
    met: bool | None  # None: not measured
    worst: str  # the case of the figure, with both times
    cases: dict[str, float]  # every case's median ratio, or the time in seconds


class SpeedResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="schema", tag=SCHEMA):
    """The speed table, and the run that produced it."""

    lines: list[Line]
    result: Result


@app.command()
def speed(
    out: Annotated[Path, typer.Option(help="folder for cpu-speed.json and cpu-speed.md")] = Path(),
    quick: Annotated[bool, typer.Option("--quick", help="fewer and shorter rounds: to see that it works")] = False,
    ranks: Annotated[str, typer.Option(help="rank counts to measure")] = "2,4,8",
    overheads: Annotated[bool, typer.Option(help="also compile, call, import and init times")] = True,
    fresh: Annotated[
        bool, typer.Option(help="write inputs before every call; otherwise leave them, and begin arrays at a page")
    ] = True,
) -> None:
    """Measure the rows of the speed table against Open MPI and Gloo; write JSON and a Markdown fragment."""
    from rich.console import Console

    from .ranks.launch import LaunchError
    from .ranks.session import Session

    console = Console()
    if not console.is_terminal:
        console.width = 160
    lines: list[Line] = _overheads(console) if overheads else []
    session = Session(lambda event: show(event, console))
    budget = Budget.quick() if quick else Budget(block_s=0.02, rounds=41, least_rounds=9, group_s=6.0)
    conditions = Conditions(fresh, "random" if fresh else "page")
    for count in (int(word) for word in ranks.split(",")):
        plan = Plan(tuple(groups_for(count)), peers=("mpi", "gloo"), budget=budget, conditions=conditions)
        try:
            session.run(plan, count)
        except LaunchError as error:
            console.print(str(error), style="red", markup=False, highlight=False)
    lines = [line_of(one, session.rows) for one in GOALS] + lines
    result = session.result({"quick": quick, "ranks": ranks, "fresh": fresh})
    console.print(table_of(lines))
    out.mkdir(parents=True, exist_ok=True)
    (out / "cpu-speed.json").write_text(to_json(SpeedResult(lines, result)))
    (out / "cpu-speed.md").write_text(markdown(lines, result.provenance))
    console.print(f"written: {out / 'cpu-speed.json'}, {out / 'cpu-speed.md'}", highlight=False)


def show(event: dict[str, Any], console: Console) -> None:
    if event["kind"] == "begin":
        console.print(f"{event['ranks']} ranks, {event['groups']} groups", style="dim", highlight=False)
    elif event["kind"] == "note":
        console.print(event["text"], style="yellow", markup=False, highlight=False)


def _overheads(console: Console) -> list[Line]:
    from .measurement.overheads import OVERHEADS

    lines = []
    for limit in LIMITS:
        goal = f"< {format_time(limit.most)}"
        try:
            seconds = OVERHEADS[limit.key]()
        except (RuntimeError, ImportError, AttributeError, TypeError) as error:
            console.print(f"{limit.name}: not measured: {error}", style="yellow", markup=False, highlight=False)
            lines.append(Line(limit.name, "", goal, "-", None, "", {}))
            continue
        met = seconds < limit.most
        lines.append(Line(limit.name, "", goal, format_time(seconds), met, "", {limit.key: seconds}))
    return lines


def line_of(one: Comparison, rows: Sequence[Row]) -> Line:
    """The comparison's line in the table, from the rows of a run."""
    goal = ratio_text(one.least, one.against)
    outcome = outcome_of(one, rows)
    if outcome is None:
        return Line(one.name, one.against, goal, "-", None, "", {})
    ratio = outcome.ratio.median
    where = f"{outcome.case}: {format_time(outcome.ours_us / 1e6)} against {format_time(outcome.theirs_us / 1e6)}"
    if one.against == BETTER_OF:
        where += f" of {NAMES[outcome.rival]}"
    cases = {label: float(f"{value:.4g}") for label, value in outcome.cases.items()}
    met = ratio >= one.least
    return Line(one.name, one.against, goal, ratio_text(ratio, one.against, goal=False), met, where, cases)


def ratio_text(value: float, against: str, goal: bool = True) -> str:
    """A ratio in the form of its goal: 2x, 90% of the ceiling, at most 1.2x the time; rounded against us."""
    if against == "float32":
        return f"<= {1 / value:.3g}x" if goal else f"{math.ceil(100 / value) / 100:.2f}x"
    if against == "the ceiling":
        return f">= {value:.0%}" if goal else f"{math.floor(100 * value)}%"
    return f">= {value:g}x" if goal else f"{math.floor(100 * value) / 100:.{2 if value < 10 else 1}f}x"


def table_of(lines: Sequence[Line]) -> Any:
    """The table for a terminal."""
    from rich import box
    from rich.table import Table

    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "against", "goal", "measured", "met", "where it is worst"):
        table.add_column(heading, justify="right" if heading in ("goal", "measured") else "left")
    for line in lines:
        met = {True: "[green]yes[/]", False: "[bold red]no[/]", None: "[yellow]-[/]"}[line.met]
        table.add_row(line.row, line.against, line.goal, line.measured, met, line.worst)
    return table


def markdown(lines: Sequence[Line], provenance: Provenance, command: str = "speed") -> str:
    """The table for docs/performance.md, with the command that produced it and the machine."""
    return f"{markdown_table(lines)}\n{about(provenance, command)}\n"


def about(provenance: Provenance, command: str) -> str:
    """The command that produced a table, the machine, the libraries."""
    libraries = ", ".join(version for version in provenance.libraries.values() if version)
    yields = "; ".join(
        f"{ranks} ranks: mpi_yield_when_idle={flag}"
        for ranks, flag in provenance.yield_when_idle.items()
        if flag != "-"
    )
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


if __name__ == "__main__":
    app(prog_name=f"python -m {__package__}.speed")
