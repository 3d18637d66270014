"""A run of the ranks on groups of contenders: its events, and the table that it writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pycollective.cli.units import format_time

from ..goals import Goal
from ..ranks.launch import LaunchError, find_launcher, launch
from ..ranks.session import Session
from ..report.lines import line_table, markdown
from ..row import Line
from ..runner import report_error, wide_console, write
from ..workload.plan import Budget
from .groups import GROUPS
from .result import EngineResult, EngineRow
from .worker import EnginePlan

__all__ = ["Groups", "Ranks", "line_of", "measure"]

Ranks = Annotated[int, typer.Option(help="how many; the goals are for two")]
Groups = Annotated[list[str] | None, typer.Option(help=f"only these: {', '.join(GROUPS)}")]


def _show(event: dict[str, Any], rows: list[EngineRow], console: Console) -> None:
    """Show an event; add a contender's row to the others."""
    if event["kind"] == "contender":
        row = EngineRow(**event["row"])
        rows.append(row)
        wrong = f"  {row.wrong} elements WRONG" if row.wrong else ""
        text = f"{row.group:10} {row.contender:22} {format_time(row.time_us / 1e6):>10}{wrong}"
        console.print(text, markup=False, highlight=False)
    elif event["kind"] == "note":
        console.print(event["text"], style="yellow", markup=False, highlight=False)


def line_of(goal: Goal, rows: Sequence[EngineRow], ranks: int) -> Line:
    """The goal's line in the table, from the rows with this many ranks."""
    here = [row for row in rows if (row.group, row.ranks) == (goal.group, ranks)]
    rounds = {row.contender: row.rounds_us for row in here}
    return goal.line(rounds.get(goal.ours), rounds.get(goal.theirs))


def measure(
    command: str,
    goals: Sequence[Goal],
    groups: Sequence[str] | None,
    budget: Budget,
    out: Path,
    ranks: int,
    quick: bool,
) -> None:
    """Measure groups, by default those of the goals; show the goals' table, write COMMAND-speed.json and .md.

    Raises typer.Exit: the ranks failed, or a result was wrong.
    """
    console = wide_console()
    groups = groups or list(dict.fromkeys(goal.group for goal in goals))
    if unknown := set(groups) - set(GROUPS):
        raise typer.BadParameter(f"unknown group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    rows: list[EngineRow] = []
    session = Session(lambda event: _show(event, rows, console))
    session.begin(find_launcher())
    plan = EnginePlan(tuple(groups), Budget.quick() if quick else budget)
    try:
        for event in launch(plan, ranks, worker=f"{__package__}.worker"):
            session.take(event)
    except LaunchError as error:
        report_error(error, console)
        raise typer.Exit(1) from None
    options = {"quick": quick, "ranks": ranks, "groups": list(plan.groups)}
    lines = [line_of(goal, rows, ranks) for goal in goals]
    result = EngineResult(lines, session.provenance(), options, session.notes, rows)
    console.print(line_table(lines))
    write(out, f"{command}-speed", result, markdown(lines, result.provenance, command), console)
    if any(row.wrong for row in rows):
        raise typer.Exit(1)
