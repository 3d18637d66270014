"""``python -m bench.calls``: every collective, messages and the barrier on plain arrays, against other MPIs.

Each cell compares one call at one size, as usually written, with the same call of one MPI: both take turns in the same
processes, on the same arrays, with fresh inputs at random alignments (see ``Conditions``).  Intel MPI and oneCCL share
processes, so that allreduce is also compared with the better of both (``goals.CALLS``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from pycollective.cli.commands import Command, refusing

from . import goals
from .measurement.stats import paired_ratio, rounded
from .options import Neighbours, Quick, RankCounts, chosen, new_app, out_option
from .peers import PEERS
from .report.lines import about, markdown_table
from .report.table import format_number
from .result import Provenance, Result
from .row import Line, Row
from .runner import measure, wide_console, write
from .speed import line_of
from .workload.cases import BARRIER, MEASURED, case_of, format_size, parse_sizes
from .workload.plan import ARRAYS, NAMES, OURS, Budget, Candidate, Conditions, Plan

__all__ = ["CallsResult", "Cell", "cells_of", "groups_for", "lines_of", "markdown"]

SCHEMA = "pycollective-calls/1"
_SIZES = "8,1K,64K,1M,16M"

app = new_app()


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


def groups_for(
    calls: Sequence[str], sizes: Sequence[int], ranks: int, peers: Sequence[str], arrays: Sequence[str]
) -> list[tuple[Candidate, ...]]:
    """A group for each call and size: the peers, and ours on plain arrays of each kind."""
    groups = {}
    for call in calls:
        for size in sizes:
            case = case_of(call, size, ranks)
            kinds = ("numpy",) if call == BARRIER else arrays
            ours = (Candidate(case, OURS, "default", arrays=kind) for kind in kinds)
            groups[case] = (*(Candidate(case, peer) for peer in peers), *ours)
    return list(groups.values())


def cells_of(rows: Sequence[Row], sizes: Sequence[int], neighbours: int = 0) -> list[Cell]:
    """The comparisons that the rows of a run allow: ours with every other library of the same group."""
    cells = []
    for ours in (row for row in rows if row.library == OURS):
        column = next((size for size in sizes if case_of(ours.collective, size, ours.ranks).nbytes == ours.size), 0)
        for theirs in (row for row in rows if row.library != OURS and row.group == ours.group):
            ratio, goal = paired_ratio(ours.rounds_us, theirs.rounds_us), goals.call_goal(ours.size, neighbours)
            low, middle, high = map(rounded, (ratio.low, ratio.median, ratio.high))
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
    out: Annotated[Path, out_option("calls")] = Path(),
    ranks: RankCounts = "2,4",
    collective: Annotated[str, typer.Option(help="calls, separated by commas")] = ",".join(MEASURED),
    sizes: Annotated[str, typer.Option(help="as of `pycollective bench`")] = _SIZES,
    peers: Annotated[str, typer.Option(help="mpi, openmpi, mpich, impi, oneccl, gloo")] = "openmpi,impi",
    arrays: Annotated[str, typer.Option(help="ours: numpy, torch")] = "numpy",
    neighbours: Neighbours = 0,
    quick: Quick = False,
) -> None:
    """Measure every call on plain arrays against other libraries; write JSON and a Markdown fragment.

    The exit code is 1 if a result was wrong.
    """
    with refusing():
        calls, others = chosen(collective, MEASURED, "collective"), chosen(peers, PEERS, "peer")
        kinds = chosen(arrays, ARRAYS, "array")
        wanted, counts = parse_sizes(sizes), [int(word) for word in ranks.split(",")]
    console = wide_console()
    budget = Budget.quick() if quick else Budget(block_s=0.01, rounds=41, least_rounds=7, group_s=1.0)
    budget = budget.beside(neighbours)
    plans = [
        (count, Plan(tuple(groups_for(calls, wanted, count, others, kinds)), peers=others, budget=budget,
                     conditions=Conditions(neighbours=neighbours)))
        for count in counts
    ]  # fmt: skip
    result = measure(plans, console, {"quick": quick, "ranks": ranks, "sizes": sizes, "neighbours": neighbours})
    cells = cells_of(result.rows, wanted, neighbours)
    lines = [] if neighbours else lines_of(result.rows)
    text = markdown(cells, result.provenance, neighbours, lines)
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    write(out, "calls", CallsResult(cells, result, lines), text, console)
    if any(row.wrong for row in result.rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    app(prog_name=f"python -m {__package__}.calls")
