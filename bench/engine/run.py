"""A run of the ranks on groups of contenders: its events, and the table that it writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..ranks.launch import LaunchError, find_launcher, launch
from ..ranks.session import Session
from ..report.table import format_time
from ..speed import markdown, table_of
from ..workload.plan import Budget
from .goals import Goal, line_of
from .groups import GROUPS
from .result import EngineResult, EngineRow, to_json
from .worker import EnginePlan

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["measure"]


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


def measure(
    command: str,
    goals: Sequence[Goal],
    groups: Sequence[str],
    budget: Budget,
    out: Path,
    ranks: int,
    quick: bool,
) -> None:
    """Measure groups; show the table of the goals, write COMMAND-speed.json and COMMAND-speed.md.

    Raises typer.Exit: the ranks failed, or a result was wrong.
    """
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = 160
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
        console.print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(1) from None
    options = {"quick": quick, "ranks": ranks, "groups": list(plan.groups)}
    lines = [line_of(goal, rows, ranks) for goal in goals]
    result = EngineResult(lines, session.provenance(), options, session.notes, rows)
    console.print(table_of(result.lines))
    out.mkdir(parents=True, exist_ok=True)
    json_file, table_file = out / f"{command}-speed.json", out / f"{command}-speed.md"
    json_file.write_text(to_json(result))
    table_file.write_text(markdown(result.lines, result.provenance, command))
    console.print(f"written: {json_file}, {table_file}", highlight=False)
    if any(row.wrong for row in result.rows):
        raise typer.Exit(1)
