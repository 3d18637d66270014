"""``python -m bench.calls``: every collective, messages and the barrier on plain arrays, against other MPIs.

Each cell compares one call at one size, as usually written, with the same call of one MPI: both take turns in the same
processes, on the same arrays, with fresh inputs at random alignments (see ``Conditions``).  Intel MPI and oneCCL share
processes, so that allreduce is also compared with the better of both (``goals.CALLS``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from pycollective.cli.commands import Command, choose, refusing
from pycollective.cli.outputs import json_text

from . import goals
from .measurement.stats import paired_ratio
from .peers import PEERS
from .report.table import format_number
from .result import Provenance, Result, Row
from .speed import Line, about, line_of, markdown_table
from .workload.cases import BARRIER, KIB, MEASURED, Case, format_size, parse_sizes, sweep_cases
from .workload.plan import ARRAYS, NAMES, OURS, Budget, Candidate, Conditions, Plan

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["CallsResult", "Cell", "cells_of", "goal_for", "groups_for", "lines_of", "markdown", "measure_plans"]

SCHEMA = "pycollective-calls/1"
_SIZES = "8,1K,64K,1M,16M"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call at one size against one other library. Times are medians over the rounds, in microseconds per call."""

    collective: str
    ranks: int
    column: int  # bytes asked for; `size` is the nearest that gives every rank an element, 0 for a barrier
    size: int
    arrays: str  # ours: numpy or torch
    against: str
    ratio: float  # their time over ours: the median of paired rounds, and the middle half
    low: float
    high: float
    goal: float
    met: bool
    ours_us: float
    theirs_us: float
    ours_p99_us: float | None
    theirs_p99_us: float | None


class CallsResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="schema", tag=SCHEMA):
    """The tables of the calls, and the run that produced them."""

    cells: list[Cell]
    result: Result
    lines: list[Line] = []  # allreduce against the better of two libraries


def goal_for(size: int, neighbours: int = 0) -> float:
    """The least ratio at a size: calls of up to some kilobytes are mostly latency.  Beside busy processes: ahead."""
    return 1.0 if neighbours else 1.2 if size < 64 * KIB else 1.5


def groups_for(
    calls: Sequence[str], sizes: Sequence[int], ranks: int, peers: Sequence[str], arrays: Sequence[str]
) -> list[tuple[Candidate, ...]]:
    """A group for each call and size: the peers, and ours on plain arrays of each kind."""
    groups = {}
    for call in calls:
        for size in sizes:
            case = _case(call, size, ranks)
            kinds = ("numpy",) if call == BARRIER else arrays
            ours = (Candidate(case, OURS, "default", arrays=kind) for kind in kinds)
            groups[case] = (*(Candidate(case, peer) for peer in peers), *ours)
    return list(groups.values())


def _case(call: str, size: int, ranks: int) -> Case:
    [case] = sweep_cases(call, "float32", "sum", [size], ranks)
    return case


def cells_of(rows: Sequence[Row], sizes: Sequence[int], neighbours: int = 0) -> list[Cell]:
    """The comparisons that the rows of a run allow: ours with every other library of the same group."""
    cells = []
    for ours in (row for row in rows if row.library == OURS):
        column = next((size for size in sizes if _case(ours.collective, size, ours.ranks).nbytes == ours.size), 0)
        for theirs in (row for row in rows if row.library != OURS and row.group == ours.group):
            ratio, goal = paired_ratio(ours.rounds_us, theirs.rounds_us), goal_for(ours.size, neighbours)
            low, middle, high = (float(f"{value:.4g}") for value in (ratio.low, ratio.median, ratio.high))
            cells.append(
                Cell(ours.collective, ours.ranks, 0 if ours.collective == BARRIER else column, ours.size, ours.arrays,
                     theirs.library, middle, low, high, goal, middle >= goal, ours.time_us, theirs.time_us,
                     ours.p99_us, theirs.p99_us)
            )  # fmt: skip
    return cells


def lines_of(rows: Sequence[Row]) -> list[Line]:
    """The lines of goals.CALLS whose libraries were all measured, in the same rounds."""
    libraries: dict[int, set[str]] = {}
    for row in rows:
        libraries.setdefault(row.group, set()).add(row.library)
    lines = []
    for one in goals.CALLS:
        here = [row for row in rows if libraries[row.group] >= set(goals.PEERS[one.against]) and row.arrays == "numpy"]
        line = line_of(one, here)
        lines += [line] if line.met is not None else []
    return lines


def markdown(cells: Sequence[Cell], provenance: Provenance, neighbours: int = 0, lines: Sequence[Line] = ()) -> str:
    """The lines, and for each rank count, other library and kind of arrays a table of medians and one of p99."""
    parts = []
    for ranks, against, arrays in dict.fromkeys((cell.ranks, cell.against, cell.arrays) for cell in cells):
        here = [cell for cell in cells if (cell.ranks, cell.against, cell.arrays) == (ranks, against, arrays)]
        kind = "" if arrays == "numpy" else ", our arrays are torch tensors"
        beside = f", beside {neighbours} busy process{'es' * (neighbours > 1)}" if neighbours else ""
        title = f"{ranks} ranks{kind}{beside}, ours / {NAMES.get(against, against)}, microseconds"
        parts += [_table(f"{title}: medians, and how many times faster", here, _median)]
        parts += [_table(f"{title}: p99", here, _p99)]
    goal = "1x" if neighbours else "1.2x, from 64 KiB on 1.5x"
    text = about(provenance, "calls") + f" Bold: below the goal of {goal}."
    return "\n".join([*([markdown_table(lines)] if lines else []), *parts, text, ""])


def _table(title: str, cells: Sequence[Cell], show: Callable[[Cell], str]) -> str:
    columns = sorted({cell.column for cell in cells if cell.column})
    lines = [f"{title}:", "", f"| | {' | '.join(map(format_size, columns))} |", "|---|" + "---|" * len(columns)]
    for call in dict.fromkeys(cell.collective for cell in cells):
        found = {cell.column: show(cell) for cell in cells if cell.collective == call}
        first = [found[0]] if 0 in found else []  # a barrier has no size
        shown = first + [found.get(column, "") for column in columns[len(first) :]]
        lines.append(f"| {call} | {' | '.join(shown)} |")
    return "\n".join([*lines, ""])


def _median(cell: Cell) -> str:
    times = f"{format_number(cell.ours_us)} / {format_number(cell.theirs_us)}"
    ratio = f"{cell.ratio:.{2 if cell.ratio < 10 else 1}f}x"
    return f"{times}: {ratio if cell.met else f'**{ratio}**'}"


def _p99(cell: Cell) -> str:
    ours, theirs = cell.ours_p99_us, cell.theirs_p99_us
    times = " / ".join("-" if time is None else format_number(time) for time in (ours, theirs))
    return f"{times}: {theirs / ours:.2f}x" if ours and theirs else times


@app.command(cls=Command)
def main(
    out: Annotated[Path, typer.Option(help="folder for calls.json and calls.md")] = Path(),
    ranks: Annotated[str, typer.Option(help="rank counts to measure")] = "2,4",
    collective: Annotated[str, typer.Option(help="calls, separated by commas")] = ",".join(MEASURED),
    sizes: Annotated[str, typer.Option(help="as of `pycollective bench`")] = _SIZES,
    peers: Annotated[str, typer.Option(help="mpi, openmpi, mpich, impi, oneccl, gloo")] = "openmpi,impi",
    arrays: Annotated[str, typer.Option(help="ours: numpy, torch")] = "numpy",
    neighbours: Annotated[int, typer.Option(metavar="K", min=0, help="busy processes (nice 19) beside it")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="fewer and shorter rounds: to see that it works")] = False,
) -> None:
    """Measure every call on plain arrays against other libraries; write JSON and a Markdown fragment.

    The exit code is 1 if a result was wrong.
    """
    from rich.console import Console

    with refusing():
        calls, others, kinds = (tuple(filter(None, words.split(","))) for words in (collective, peers, arrays))
        for words, known, what in ((calls, MEASURED, "collective"), (others, PEERS, "peer"), (kinds, ARRAYS, "array")):
            for word in words:
                choose(word, known, what)
        wanted, counts = parse_sizes(sizes), [int(word) for word in ranks.split(",")]
    console = Console()
    if not console.is_terminal:
        console.width = 160
    budget = Budget.quick() if quick else Budget(block_s=0.01, rounds=41, least_rounds=7, group_s=1.0)
    budget = budget.beside(neighbours)
    plans = [
        (count, Plan(tuple(groups_for(calls, wanted, count, others, kinds)), peers=others, budget=budget,
                     conditions=Conditions(neighbours=neighbours)))
        for count in counts
    ]  # fmt: skip
    result = measure_plans(plans, console, {"quick": quick, "ranks": ranks, "sizes": sizes, "neighbours": neighbours})
    cells = cells_of(result.rows, wanted, neighbours)
    lines = [] if neighbours else lines_of(result.rows)
    out.mkdir(parents=True, exist_ok=True)
    (out / "calls.json").write_text(_json(cells, lines, result))
    (out / "calls.md").write_text(text := markdown(cells, result.provenance, neighbours, lines))
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print(f"written: {out / 'calls.json'}, {out / 'calls.md'}", highlight=False)
    if any(row.wrong for row in result.rows):
        raise typer.Exit(1)


def measure_plans(plans: Sequence[tuple[int, Plan]], console: Console, options: dict[str, Any]) -> Result:
    """Run plans, (rank count, plan) each, with their progress on the console; ends the program if one cannot start."""
    from .ranks.launch import LaunchError
    from .ranks.session import Session, run_plans
    from .speed import show

    session = Session(lambda event: show(event, console))
    try:
        run_plans(plans, session)
    except LaunchError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(1) from error
    return session.result(options)


def _json(cells: Sequence[Cell], lines: Sequence[Line], result: Result) -> str:
    tables = {"schema": SCHEMA, "cells": cells, "lines": lines, "result": result}
    return json_text(msgspec.to_builtins(tables)) + "\n"


if __name__ == "__main__":
    app(prog_name=f"python -m {__package__}.calls")
