"""``python -m bench.speed``: measures the speed table.

Every figure is a ratio against a peer in the same rounds (median of paired ratios), each library in the faster of its
two forms (in place or out of place).  A row of several sizes, rank counts or memories shows its worst case.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from .goals import BETTER_OF, LIMITS, PEERS, SPEED, Comparison
from .measurement.overheads import OVERHEADS
from .measurement.stats import paired_ratio, rounded
from .options import Quick, RankCounts, new_app, out_option
from .peers.ceiling import CEILING
from .ranks.launch import LaunchError
from .report.lines import line_table, markdown, ratio_text, times_text
from .result import Result
from .row import Line, Row
from .runner import open_session, report_error, wide_console, write
from .workload.cases import case_of, format_size
from .workload.plan import NAMES, OURS, Budget, Candidate, Conditions, Plan

__all__ = ["SCHEMA", "SpeedResult", "groups_for", "line_of", "speed"]

SCHEMA = "pycollective-speed/1"

app = new_app()


class SpeedResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="schema", tag=SCHEMA):
    """The speed table, and the run that produced it."""

    lines: list[Line]
    result: Result


@app.command()
def speed(
    out: Annotated[Path, out_option("cpu-speed")] = Path(),
    quick: Quick = False,
    ranks: RankCounts = "2,4,8",
    overheads: Annotated[bool, typer.Option(help="also compile, call, import and init times")] = True,
    fresh: Annotated[
        bool, typer.Option(help="write inputs before every call; otherwise leave them, and begin arrays at a page")
    ] = True,
) -> None:
    """Measure the rows of the speed table against Open MPI and Gloo; write JSON and a Markdown fragment."""
    console = wide_console()
    limits = _overheads(console) if overheads else []
    session = open_session(console)
    budget = Budget.quick() if quick else Budget(block_s=0.02, rounds=41, least_rounds=9, group_s=6.0)
    conditions = Conditions(fresh, "random" if fresh else "page")
    for count in (int(word) for word in ranks.split(",")):
        plan = Plan(tuple(groups_for(count)), peers=("mpi", "gloo"), budget=budget, conditions=conditions)
        try:
            session.run(plan, count)
        except LaunchError as error:
            report_error(error, console)
    lines = [line_of(one, session.rows) for one in SPEED] + limits
    result = session.result({"quick": quick, "ranks": ranks, "fresh": fresh})
    console.print(line_table(lines))
    write(out, "cpu-speed", SpeedResult(lines, result), markdown(lines, result.provenance, "speed"), console)


def _overheads(console: Console) -> list[Line]:
    lines = []
    for limit in LIMITS:
        try:
            taken = [1e6 * OVERHEADS[limit.ours]()]
        except (RuntimeError, ImportError, AttributeError, TypeError) as error:
            console.print(f"{limit.name}: not measured: {error}", style="yellow", markup=False, highlight=False)
            taken = None
        lines.append(limit.line(taken))
    return lines


def groups_for(ranks: int) -> list[tuple[Candidate, ...]]:
    """The groups to measure on this many ranks: for each case of the goals a group with all its peers."""
    groups: dict[tuple[str, int], dict[Candidate, None]] = {}
    for comparison in (one for one in SPEED if ranks in one.ranks):
        for size in comparison.sizes:
            group = groups.setdefault((comparison.collective, size), {})
            group.update(dict.fromkeys(_candidates(comparison, ranks, size)))
    return [tuple(group) for group in groups.values()]


def _candidates(one: Comparison, ranks: int, size: int) -> list[Candidate]:
    """Ours and theirs, each in place and with two arrays if the collective supports both: the faster form counts."""
    case, float_case = (case_of(one.collective, size, ranks, dtype) for dtype in (one.dtype, "float32"))
    forms = (False,) if case.kind.single_buffer else (False, True)
    if one.against == "the ceiling":
        return [Candidate(case, CEILING, "", "windows"), Candidate(case, OURS, "default", "windows")]
    ours = [Candidate(case, OURS, *memory) for memory in product(one.topologies, one.paths, forms)]
    if one.against == "float32":
        return [Candidate(float_case, OURS, "default", path) for path in one.paths] + ours
    if one.against == "Gloo":  # it supports one form only
        return [Candidate(case, "gloo"), *ours]
    return [*(Candidate(case, "mpi", "", "plain", form) for form in forms), *ours]


def line_of(one: Comparison, rows: Sequence[Row]) -> Line:
    """The comparison's line in the table: its worst case, and every case's median ratio."""
    goal = ratio_text(one.least, one.against)
    cases: dict[str, float] = {}
    times: dict[str, str] = {}
    for ranks, size, path in product(one.ranks, one.sizes, one.paths):
        ours, theirs = _sides(one, rows, ranks, size, path)
        if not ours or not theirs:
            return Line.unmeasured(one.name, one.against, goal)
        best, rival = (min(side, key=lambda r: r.time_us) for side in (ours, theirs))
        label = f"{ranks} ranks, {format_size(size)}, {path}"
        cases[label] = paired_ratio(best.rounds_us, rival.rounds_us).median
        times[label] = times_text(best.time_us / 1e6, rival.time_us / 1e6)
        if one.against == BETTER_OF:
            times[label] += f" of {NAMES[rival.library]}"
    worst = min(cases, key=cases.__getitem__)
    ratio, where = cases[worst], f"{worst}: {times[worst]}"
    shown = ratio_text(ratio, one.against, goal=False)
    figures = {label: rounded(each) for label, each in cases.items()}
    return Line(one.name, one.against, goal, shown, ratio >= one.least, where, figures)


def _sides(one: Comparison, rows: Sequence[Row], ranks: int, size: int, path: str) -> tuple[list[Row], list[Row]]:
    """Rows of ours and theirs, each form of both."""
    here = [r for r in rows if (r.collective, r.ranks, r.size) == (one.collective, ranks, size)]
    ours = [r for r in here if r.library == OURS and (r.type, r.path) == (one.dtype, path)]
    ours = [r for r in ours if r.topology in one.topologies]
    theirs = [r for r in here if r.library in PEERS[one.against] and r not in ours]
    if one.against in ("the ceiling", "float32"):  # the same form
        ours, theirs = ([r for r in side if not r.in_place] for side in (ours, theirs))
    if one.against == "float32":
        theirs = [r for r in theirs if (r.type, r.path, r.topology) == ("float32", path, "default")]
    return ours, theirs


if __name__ == "__main__":
    app(prog_name=f"python -m {__package__}.speed")
