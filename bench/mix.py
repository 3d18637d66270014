"""``python -m bench.mix``: `mix` with the neighbours on a ring, against MPI's neighbourhood collective and the ceiling.

The MPI is Open MPI by default: `Neighbor_alltoallw` on a graph communicator, and NumPy for the weighted sum.  The
ceiling is the same weighted sum of local arrays: what remains if nothing waits for anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from pycollective.cli.commands import Command, choose, refusing

from .goals import mix_goal
from .measurement.stats import paired_ratio, rounded
from .options import Quick, RankCounts, chosen, new_app, out_option
from .peers import PEERS
from .peers.ceiling import CEILING
from .report.lines import about
from .report.table import format_number
from .result import Provenance, Result
from .row import Row
from .runner import measure, wide_console, write
from .workload.cases import GRAPHS, Case, format_size, parse_sizes
from .workload.plan import NAMES, OURS, PATHS, Budget, Candidate, Plan

__all__ = ["Comparison", "MixResult", "comparisons_of", "groups_for", "markdown"]

SCHEMA = "pycollective-mix/1"

app = new_app()


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`mix` at one size against one other candidate. Times are medians over the rounds, in microseconds per call."""

    graph: str
    ranks: int
    size: int  # bytes
    path: str  # memory of our arrays: windows or plain
    against: str  # a library, or "ceiling"
    ratio: float  # their time over ours: the median of paired rounds
    goal: float | None  # None: there is none
    ours_us: float
    theirs_us: float


class MixResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="schema", tag=SCHEMA):
    """The comparisons, and the run that produced them."""

    comparisons: list[Comparison]
    result: Result


def groups_for(graph: str, sizes: Sequence[int], ranks: int, peers: Sequence[str]) -> list[tuple[Candidate, ...]]:
    """A group for each size: the peers and the ceiling, and ours on each kind of memory."""
    groups = []
    for size in sizes:
        case = Case("mix", "float32", graph, max(1, size // 4), ranks)
        others = (*(Candidate(case, peer) for peer in peers), Candidate(case, CEILING, path="windows"))
        groups.append((*others, *(Candidate(case, OURS, "default", path) for path in PATHS)))
    return groups


def comparisons_of(rows: Sequence[Row]) -> list[Comparison]:
    """Ours on each kind of memory with every other candidate of the same group."""
    found = []
    for ours in (row for row in rows if row.library == OURS):
        for theirs in (row for row in rows if row.library != OURS and row.group == ours.group):
            ratio = rounded(paired_ratio(ours.rounds_us, theirs.rounds_us).median)
            goal = mix_goal(ours.size, ours.ranks, ours.path, theirs.library)
            found.append(
                Comparison(ours.op, ours.ranks, ours.size, ours.path, theirs.library, ratio, goal, ours.time_us,
                           theirs.time_us)
            )  # fmt: skip
    return found


def markdown(comparisons: Sequence[Comparison], provenance: Provenance) -> str:
    """A table, a row for each graph, rank count and size, and the memory of our arrays."""
    against = list(dict.fromkeys(one.against for one in comparisons))
    titles = [f"{NAMES.get(name, name)}: ratio" for name in against]
    lines = [f"| graph, ranks | size | arrays | ours | {' | '.join(titles)} |", "|---" * (4 + len(against)) + "|"]
    for key in dict.fromkeys((one.graph, one.ranks, one.size, one.path) for one in comparisons):
        graph, ranks, size, path = key
        cells = {one.against: one for one in comparisons if (one.graph, one.ranks, one.size, one.path) == key}
        ours = format_number(next(iter(cells.values())).ours_us)
        shown = (_cell(cells[name]) if name in cells else "" for name in against)
        lines.append(f"| {graph}, {ranks} | {format_size(size)} | {path} | {ours} | {' | '.join(shown)} |")
    return "\n".join([*lines, "", f"Microseconds. {about(provenance, 'mix')} Bold: below the goal.", ""])


def _cell(one: Comparison) -> str:
    ratio = f"{one.ratio:.2f}x"
    return f"{format_number(one.theirs_us)}: {ratio if one.goal is None or one.ratio >= one.goal else f'**{ratio}**'}"


@app.command(cls=Command)
def main(
    out: Annotated[Path, out_option("mix")] = Path(),
    graph: Annotated[str, typer.Option(help=", ".join(GRAPHS))] = "ring",
    ranks: RankCounts = "2,4",
    sizes: Annotated[str, typer.Option(help="as of `pycollective bench`")] = "8,1K,64K,1M,16M,64M",
    peers: Annotated[str, typer.Option(help="openmpi, mpich or impi")] = "openmpi",
    quick: Quick = False,
) -> None:
    """Measure `mix`; write JSON and a Markdown table. The exit code is 1 if a result was wrong."""
    with refusing():
        choose(graph, GRAPHS, "graph")
        others = chosen(peers, PEERS, "peer")
        wanted, counts = parse_sizes(sizes), [int(word) for word in ranks.split(",")]
    console = wide_console()
    budget = Budget.quick() if quick else Budget(block_s=0.01, rounds=41, least_rounds=9, group_s=3.0)
    plans = [(count, Plan(tuple(groups_for(graph, wanted, count, others)), None, others, budget)) for count in counts]
    result = measure(plans, console, {"quick": quick, "graph": graph, "ranks": ranks, "sizes": sizes})
    comparisons = comparisons_of(result.rows)
    text = markdown(comparisons, result.provenance)
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    write(out, "mix", MixResult(comparisons, result), text, console)
    if any(row.wrong for row in result.rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    app(prog_name=f"python -m {__package__}.mix")
