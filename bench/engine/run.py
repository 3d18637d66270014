"""A run of the ranks on groups of contenders: its events, and the table that it writes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..ranks.launch import LaunchError, find_launcher, launch
from ..report.table import format_time
from ..result import available_cores, collect_provenance
from ..speed import markdown, table_of
from ..workload.plan import Budget
from .goals import Goal, line_of
from .groups import GROUPS
from .result import EngineResult, EngineRow, to_json
from .worker import EnginePlan

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["measure"]


class _Run:
    """The reports of the ranks of one world."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._load = os.getloadavg()[0]
        self.rows: list[EngineRow] = []
        self.notes: list[str] = []
        self._libraries: dict[str, str] = {}
        self._yields: dict[str, str] = {}
        if self._load > available_cores() / 2:
            self.note(f"this machine is busy (load {self._load:.1f}): figures will be off")
        if find_launcher().note:
            self.note(find_launcher().note)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self._print(text, "yellow")

    def take(self, event: dict[str, Any]) -> None:
        match event["kind"]:
            case "row":
                row = EngineRow(**event["row"])
                self.rows.append(row)
                wrong = f"  {row.wrong} elements WRONG" if row.wrong else ""
                self._print(f"{row.group:10} {row.contender:22} {format_time(row.time_us / 1e6):>10}{wrong}", "")
            case "note":
                self.note(event["text"])
            case "begin":
                self._libraries.update(event["libraries"])
                self._yields[str(event["ranks"])] = event["yield"]

    def _print(self, text: str, style: str) -> None:
        self._console.print(text, style=style, markup=False, highlight=False)

    def result(self, ranks: int, options: dict[str, Any], goals: Sequence[Goal]) -> EngineResult:
        """`goals`: the rows of the table."""
        provenance = collect_provenance(self._libraries, self._yields, find_launcher().kind, self._load)
        lines = [line_of(goal, self.rows, ranks) for goal in goals]
        return EngineResult(lines, provenance, options, self.notes, self.rows)


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
    run = _Run(console)
    plan = EnginePlan(tuple(groups), Budget.quick() if quick else budget)
    try:
        for event in launch(plan, ranks, worker=f"{__package__}.worker"):
            run.take(event)
    except LaunchError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(1) from None
    result = run.result(ranks, {"quick": quick, "ranks": ranks, "groups": list(plan.groups)}, goals)
    console.print(table_of(result.lines))
    out.mkdir(parents=True, exist_ok=True)
    json_file, table_file = out / f"{command}-speed.json", out / f"{command}-speed.md"
    json_file.write_text(to_json(result))
    table_file.write_text(markdown(result.lines, result.provenance, command))
    console.print(f"written: {json_file}, {table_file}", highlight=False)
    if any(row.wrong for row in result.rows):
        raise typer.Exit(1)
