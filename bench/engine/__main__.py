"""``python -m bench.engine``: measure, show the table, write ``engine-speed.json`` and ``engine-speed.md``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..launch import LaunchError, find_launcher, launch
from ..plan import Budget
from ..result import available_cores, collect_provenance
from ..speed import markdown, table_of
from ..table import format_time
from .goals import GOALS, line_of
from .groups import GROUPS
from .result import EngineResult, EngineRow, to_json
from .worker import EnginePlan

if TYPE_CHECKING:
    from rich.console import Console

_FOLDER = Path(__file__).resolve().parents[1] / "results"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


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

    def result(self, ranks: int, options: dict[str, Any]) -> EngineResult:
        provenance = collect_provenance(self._libraries, self._yields, find_launcher().kind, self._load)
        lines = [line_of(goal, self.rows, ranks) for goal in GOALS]
        return EngineResult(lines, provenance, options, self.notes, self.rows)


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="folder for engine-speed.json and engine-speed.md")] = _FOLDER,
    quick: Annotated[bool, typer.Option("--quick", help="fewer and shorter rounds: to see that it works")] = False,
    ranks: Annotated[int, typer.Option(help="how many; the goals are for two")] = 2,
    group: Annotated[list[str] | None, typer.Option(help=f"only these: {', '.join(GROUPS)}")] = None,
) -> None:
    """Measure the engine against Gloo, DistributedDataParallel and Open MPI.  Exit status 1 if a result was wrong."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = 160
    if unknown := set(group or ()) - set(GROUPS):
        raise typer.BadParameter(f"unknown group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    budget = Budget.quick() if quick else Budget(block_s=0.05, rounds=41, least_rounds=11, group_s=20.0)
    run = _Run(console)
    plan = EnginePlan(tuple(group or GROUPS), budget=budget)
    try:
        for event in launch(plan, ranks, worker=f"{__package__}.worker"):
            run.take(event)
    except LaunchError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(1) from None
    result = run.result(ranks, {"quick": quick, "ranks": ranks, "groups": list(plan.groups)})
    console.print(table_of(result.lines))
    out.mkdir(parents=True, exist_ok=True)
    (out / "engine-speed.json").write_text(to_json(result))
    (out / "engine-speed.md").write_text(markdown(result.lines, result.provenance, "engine"))
    console.print(f"written: {out / 'engine-speed.json'}, {out / 'engine-speed.md'}", highlight=False)
    if any(row.wrong for row in result.rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    app(prog_name=f"python -m {__package__}")
