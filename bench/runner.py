"""What all programs that write a table do: run worlds of ranks, show their progress, and write the files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.console import Console

from .ranks.launch import LaunchError
from .ranks.session import Session, run_plans
from .result import Result, to_json
from .workload.plan import Plan

__all__ = ["measure", "open_session", "report_error", "wide_console", "write"]


def wide_console(width: int = 160) -> Console:
    """Standard output; a table that is not shown on a terminal has this width."""
    console = Console()
    if not console.is_terminal:
        console.width = width
    return console


def report_error(error: Exception, console: Console) -> None:
    """Show why ranks could not be measured."""
    console.print(str(error), style="red", markup=False, highlight=False)


def open_session(console: Console) -> Session:
    """A session that shows its worlds and notes."""

    def show(event: dict[str, Any]) -> None:
        if event["kind"] == "begin":
            console.print(f"{event['ranks']} ranks, {event['groups']} groups", style="dim", highlight=False)
        elif event["kind"] == "note":
            console.print(event["text"], style="yellow", markup=False, highlight=False)

    return Session(show)


def measure(plans: Sequence[tuple[int, Plan]], console: Console, options: dict[str, Any]) -> Result:
    """Run plans, (rank count, plan) each, with their progress on the console; ends the program if one cannot start."""
    session = open_session(console)
    try:
        run_plans(plans, session)
    except LaunchError as error:
        report_error(error, console)
        raise typer.Exit(1) from error
    return session.result(options)


def write(out: Path, name: str, document: msgspec.Struct, markdown: str, console: Console) -> None:
    """Write NAME.json and NAME.md to a folder."""
    out.mkdir(parents=True, exist_ok=True)
    files = out / f"{name}.json", out / f"{name}.md"
    for file, text in zip(files, (to_json(document), markdown), strict=True):
        file.write_text(text)
    console.print(f"written: {files[0]}, {files[1]}", highlight=False)
