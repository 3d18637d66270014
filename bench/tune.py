"""``pycollective tune``: measures how each call runs fastest on this machine, for the setting PYCOLLECTIVE_TUNING.

The topologies that keep the bits of the default take turns in the same processes, in both variants.  The best one then
takes turns with the default, on plain and on shared arrays, with smaller and larger tiles.  A choice is kept if it is
faster than the default by ``LEAST`` and on no kind of array slower.  Ranks on several hosts are started by a launcher.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from pycollective.cli import outputs, selection
from pycollective.cli.commands import Command, choose, refusing
from pycollective.cli.units import format_size, parse_sizes
from pycollective.comm import tuning_file
from pycollective.comm.planner import default_text
from pycollective.comm.tuning import RULES, Choice
from pycollective.schedule import compile
from pycollective.schedule.collectives import COLLECTIVES
from pycollective.schedule.language import registry

from .measurement.stats import paired_ratio, rounded
from .options import Quick, new_app
from .peers.pycollective import choice_in, written
from .ranks.launch import Launcher, LaunchError
from .ranks.session import Session
from .ranks.worker import work
from .ranks.world import first_rank, open_world, ranks_started
from .report.live import LiveTable
from .result import available_cores
from .row import Row
from .runner import report_error
from .workload.cases import Case, sweep_cases
from .workload.plan import OURS, Budget, Candidate, Plan

__all__ = ["first_choices", "kept_rows", "tune"]

LEAST = 1.05
"""How many times faster than the default a choice must be, on all kinds of arrays together."""
NOT_SLOWER = 0.98
"""The least on each kind of array."""
TILES = (32 << 10, 512 << 10)
"""Bytes, besides those of the settings."""
_TILED = 256 << 10
"""Bytes of calls from which tiles are tried."""
_MOST_SMALL = 1 << 20
"""Bytes of calls up to which the variant for small messages is tried."""
_MEMORY = ("plain", "shared")

Group = tuple[Candidate, ...]
Run = Callable[[Plan], list[Row]]
"""Measures a plan; its rows."""

app = new_app()


# -- what is measured ----------------------------------------------------------------------------------------------


def first_choices(collective: str, nbytes: int, hosts: Sequence[int], any_order: bool) -> list[Choice]:
    """The choices of the first round: the rules, and every topology in its variants; of equal schedules only one.

    Args:
        collective, nbytes: the call.
        hosts: the host of every rank.
        any_order: whether sums may have other bits than the default's.
    """
    ranks, row, found = len(hosts), COLLECTIVES[collective], dict[bytes, Choice]()
    root = ranks - 1 if row.rooted else None
    for info in registry.describe():
        fits = collective in info.collectives and registry.supports(info.name, ranks)
        if not fits or (row.reduces and info.order != "rank" and not any_order):
            continue
        for small in (False, True)[: 1 + (nbytes <= _MOST_SMALL and registry.has_small(info.cls, collective))]:
            schedule = compile(info.name, collective, ranks, root, small=small, hosts=hosts)
            found.setdefault(schedule.table(ranks - 1).tobytes(), Choice(info.name, small))
    return [RULES, *found.values()]


def _with_tiles(choice: Choice, nbytes: int) -> list[Choice]:
    return [choice, *(choice._replace(tile=tile) for tile in TILES if nbytes >= _TILED)]


def _group(case: Case, choices: Sequence[Choice], memory: Sequence[str]) -> Group:
    return tuple(Candidate(case, OURS, written(choice), path) for path in memory for choice in choices)


def _best(rows: Sequence[Row]) -> Choice:
    """The choice with the least time; the rules if none is faster."""
    rules = next((row for row in rows if choice_in(row.topology) == RULES), None)
    if rules is None:
        return RULES
    ratios = {choice_in(row.topology): paired_ratio(row.rounds_us, rules.rounds_us).median for row in rows}
    return max(ratios, key=ratios.__getitem__)


def _default(case: Case) -> Choice:
    """The rules' choice for ranks of one host, written out."""
    return Choice("direct", registry.takes_small(registry.get("direct"), case.collective, case.nbytes))


def _judge(rows: Sequence[Row]) -> tuple[Choice, float] | None:
    """The choice that is fastest on all kinds of arrays together, and by how much; None: the rules."""
    rules = {row.path: row for row in rows if choice_in(row.topology) == RULES}
    found: dict[Choice, list[Any]] = {}
    for row in rows:
        if row.path in rules and choice_in(row.topology) != RULES and not row.wrong:
            ratio = paired_ratio(row.rounds_us, rules[row.path].rounds_us)
            found.setdefault(choice_in(row.topology), []).append(ratio)
    gains = {
        choice: math.prod(ratio.median for ratio in ratios) ** (1 / len(ratios))
        for choice, ratios in found.items()
        if len(ratios) == len(rules)
        and min(ratio.median for ratio in ratios) >= NOT_SLOWER
        and math.prod(ratio.low for ratio in ratios) >= 1
    }
    best = max(gains, key=gains.__getitem__, default=RULES)
    return (best, gains[best]) if best != RULES and gains[best] >= LEAST else None


@dataclass(frozen=True)
class Search:
    """What is tuned.

    Attributes:
        collectives: names.
        sizes: bytes, ascending.
        seconds: for all, about.
        any_order: as for `first_choices`.
    """

    collectives: Sequence[str]
    sizes: Sequence[int]
    seconds: float
    any_order: bool

    def measure(self, run: Run, hosts: Sequence[int]) -> tuple[tuning_file.Row, ...]:
        """What is kept of both rounds, for ranks on these hosts."""
        root = len(hosts) - 1  # not where a star has its hub: a choice serves all roots
        cases = [
            case
            for name in self.collectives
            for case in sweep_cases(name, "float32", "sum", self.sizes, len(hosts), root)
        ]
        each = self.seconds / max(1, len(cases))
        first = [
            _group(case, first_choices(case.collective, case.nbytes, hosts, self.any_order), ("plain",))
            for case in cases
        ]
        by_case = _by_case(run(Plan(tuple(first), budget=Budget(0.003, 9, 3, each / 3))))
        groups = []
        for case in cases:
            best = _best(by_case.get(case, ()))
            choices = [*_with_tiles(best, case.nbytes), *_with_tiles(_default(case), case.nbytes)[1:]]
            tried = list(dict.fromkeys(choice for choice in choices if choice.topology))
            groups += [_group(case, [RULES, *tried], _MEMORY if max(hosts) == 0 else _MEMORY[:1])] if tried else []
        by_case = _by_case(run(Plan(tuple(groups), budget=Budget(0.004, 25, 9, 2 * each / 3))))
        return kept_rows(by_case, cases)


def _by_case(rows: Sequence[Row]) -> dict[Case, list[Row]]:
    found: dict[Case, list[Row]] = {}
    for row in rows:
        found.setdefault(Case(row.collective, row.type, row.op, row.count, row.ranks, row.root), []).append(row)
    return found


def kept_rows(by_case: dict[Case, list[Row]], cases: Sequence[Case]) -> tuple[tuning_file.Row, ...]:
    """The file's rows: for each case the range that ends midway, by ratio, to the next size of the same collective.

    Beyond the sizes that were measured it ends at a quarter, and at four times.

    Args:
        by_case: the rows of the second round.
        cases: all that were measured in the first one.
    """
    found: list[tuning_file.Row] = []
    for case, rows in by_case.items():
        judged = _judge(rows)
        if judged is None:
            continue
        (topology, small, tile), gain = judged
        sizes = [other.nbytes for other in cases if other.collective == case.collective]
        below = [size for size in sizes if size < case.nbytes]
        above = [size for size in sizes if size > case.nbytes]
        low = math.isqrt(max(below) * case.nbytes) if below else case.nbytes // 4
        high = math.isqrt(min(above) * case.nbytes) if above else case.nbytes * 4
        found.append(tuning_file.Row(case.collective, low, high, topology, small, tile, rounded(gain, 3)))
    return tuple(found)


# -- the command ---------------------------------------------------------------------------------------------------


@app.command(cls=Command)
def tune(
    out: Annotated[Path, typer.Option(help="the file; results of other numbers of ranks in it are kept")] = Path(
        "tuning.json"
    ),
    ranks: Annotated[
        str, typer.Option(help="rank counts, as 1-17 or 2,4,8", show_default="one per core, at least 2")
    ] = "",
    collective: Annotated[str, typer.Option(help="collectives, separated by commas", show_default="all")] = "",
    sizes: Annotated[str, typer.Option(help="bytes of the calls")] = "4,64,1K,16K,64K,256K,1M,16M",
    seconds: Annotated[float, typer.Option(min=1, help="for each rank count, about")] = 60.0,
    any_order: Annotated[
        bool, typer.Option("--any-order", help="also topologies that add up in another order: other bits")
    ] = False,
    quick: Quick = False,
) -> None:
    """Measure which topology, variant and tile are fastest for each call, for PYCOLLECTIVE_TUNING=FILE.

    On ranks of this host; started by `pycollective run`, mpirun or torchrun on the ranks that are there.
    """
    with refusing():
        if default_text():
            raise ValueError("PYCOLLECTIVE_TOPOLOGY decides for all calls: unset it first")
        tunable = [name for name, row in COLLECTIVES.items() if not row.weighted]
        names = selection.collectives(collective) if collective else tunable
        wanted = sorted(set(parse_sizes(sizes)))
        counts = selection.ranks(ranks) if ranks else [max(2, available_cores())]
        for name in names:
            choose(name, tunable, "collective with topologies")
        outputs.check(None, out)
    search = Search(names, wanted, 2.0 if quick else seconds, any_order)
    started = ranks_started()
    console = Console(quiet=bool(started) and not first_rank())

    try:
        if started:
            _on_these_ranks(console, out, search)
            return
        for count in counts:
            _keep(console, out, str(count), search.measure(_starting(console, count), [0] * count))
    except LaunchError as error:
        report_error(error, console)
        raise typer.Exit(1) from error


def _starting(console: Console, count: int) -> Run:
    """Runs on ranks that are started for each plan."""

    def run(plan: Plan) -> list[Row]:
        with LiveTable(console, 1) as live:
            session = Session(live)
            session.run(plan, count, Launcher("pycollective"))
        return session.rows

    return run


def _on_these_ranks(console: Console, out: Path, search: Search) -> None:
    """Collective. All see the rows of rank 0, from which they choose what is measured next."""
    with open_world() as world, LiveTable(console, 2) as live:
        hosts = importlib.import_module("pycollective").init().backend.group.nodes.of

        def run(plan: Plan) -> list[Row]:
            session = Session(live)
            work(plan, world, session.take)
            received: list[Row] = world.share(session.rows)[0]
            return received

        rows = search.measure(run, hosts)
    if first_rank():
        _keep(console, out, tuning_file.layout(hosts), rows)


def _keep(console: Console, out: Path, name: str, rows: tuple[tuning_file.Row, ...]) -> None:
    tuning_file.update(str(out), name, rows)
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("collective", "more than", "up to", "choice", "times as fast"):
        left = heading in ("collective", "choice")
        table.add_column(heading, justify="left" if left else "right", no_wrap=heading != "choice")
    for row in rows:
        choice = written(Choice(row.topology, row.small, row.tile))
        sizes = format_size(row.above), format_size(row.up_to)
        table.add_row(row.collective, *sizes, choice, f"{row.speedup:.2f}")
    console.print(f"{name} ranks: the default is beaten for {len(rows) or 'no'} ranges of sizes", highlight=False)
    if rows:
        console.print(table)
    console.print(f"written: {out}; PYCOLLECTIVE_TUNING={out} makes calls use it", highlight=False)


if __name__ == "__main__":
    app(prog_name=f"python -m {__package__}.tune")
