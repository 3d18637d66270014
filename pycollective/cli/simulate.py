"""`pycollective simulate`: topologies on a simulated network (see schedule/simulator/simulator.py)."""

from __future__ import annotations

import csv
import io
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from pycollective.cli import outputs, selection
from pycollective.cli.commands import complain, refusing
from pycollective.cli.units import format_size, format_time, parse_duration, parse_rate, parse_size, parse_sizes
from pycollective.schedule import COLLECTIVES, Network, Simulation, describe, get, info, label, simulate
from pycollective.schedule.language import registry
from pycollective.schedule.language.user_files import near_files
from pycollective.schedule.simulator.fitting import Fit, Measurement, fit

Case = tuple[Any, str, int]
"""(topology, collective, ranks)."""
_OPTIONS = {"latency": "--latency", "bandwidth": "--bandwidth", "reduction": "--reduce"}
DEFAULTS = {"latency": "5us", "bandwidth": "100Gbit/s", "reduction": "inf"}
"""Options of the network, as typed."""


@dataclass(frozen=True)
class Request:
    """The request, as typed."""

    topologies: Sequence[str]
    collective: str
    ranks: str
    sizes: str
    root: int
    tile: str
    network: dict[str, Any]  # as for `Network`, but text for values with units; None: not given
    fit: Path | None = None


@dataclass(frozen=True)
class Outputs:
    """Destinations of results besides the table; Path("-") is stdout."""

    json: Path | None = None
    csv: Path | None = None
    plot: Path | None = None

    @property
    def for_machines(self) -> bool:
        """Whether standard output is machine-readable."""
        return outputs.STDOUT in (self.json, self.csv)


def run(request: Request, wanted: Outputs) -> int:
    """The command: simulate the request and print a table. Exits with 2 on invalid requests."""
    from rich.console import Console

    console = Console(quiet=wanted.for_machines)
    with refusing("plot" if wanted.plot else ""):
        cases = _cases(request)
        tile = _tile(request.tile)
        outputs.check(wanted.plot, wanted.json, wanted.csv)
        fitted = _fit(request, tile)
        network = fitted.network if fitted else _network({**DEFAULTS, **_given(request.network)})
        found = _simulate(cases, request, network, tile)
        if not found:
            return 2
        if fitted:
            console.print(_fit_report(fitted), highlight=False)
        _write(found, network, fitted, wanted)
        for name in dict.fromkeys(one.collective for one in found):
            for table in _tables([one for one in found if one.collective == name], console.width):
                console.print(table)
        if wanted.plot is not None:
            _plot(found, wanted.plot, console)
    return 0


def _tile(text: str) -> int | None:
    tile = parse_size(text) if text else None
    if tile == 0:
        raise ValueError("a tile has at least 1 byte")
    return tile


def _given(typed: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in typed.items() if value is not None}


def _network(typed: dict[str, Any]) -> Network:
    parsers = {"latency": parse_duration, "node_latency": parse_duration}
    parsers |= dict.fromkeys(("bandwidth", "node_bandwidth", "reduction"), parse_rate)
    fields = dict(typed)
    for name in parsers.keys() & fields.keys():
        fields[name] = parsers[name](fields[name])
    return Network(**fields)


def _cases(request: Request) -> list[Case]:
    """The cases to simulate, in order."""
    wanted, counts = selection.collectives(request.collective), selection.ranks(request.ranks)
    instances = selection.topologies(request.topologies, ())
    selection.having(instances, wanted)
    cases: list[Case] = []
    for name, count in itertools.product(wanted, counts):
        some = instances or [get(row.name) for row in describe() if name in row.collectives]
        cases += [(instance, name, count) for instance in some if registry.supports(instance, count)]
    for instance in instances:
        selection.supported(instance, counts)
    if any(COLLECTIVES[name].rooted for name in wanted) and not 0 <= request.root < counts[0]:
        raise ValueError(f"root {request.root} is out of range for {counts[0]} ranks")
    return cases


def _simulate(cases: list[Case], request: Request, network: Network, tile: int | None) -> list[Simulation]:
    """All cases with all sizes; reports those that cannot be simulated."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    sizes = parse_sizes(request.sizes)
    if min(sizes) < 1:
        raise ValueError(f"sizes are at least 1 byte, in {request.sizes!r}")
    found = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("simulate", total=len(cases) * len(sizes))
        for number, (instance, name, ranks) in enumerate(cases):
            progress.update(task, description=f"{label(instance)}, {ranks} ranks")
            try:
                for size in sizes:
                    found.append(simulate(instance, name, ranks, size, network, root=request.root, tile=tile))
                    progress.advance(task)
            except Exception as error:  # a user's topology may raise anything
                complain(f"{label(instance)}: {error}{selection.place(error)}")
            progress.update(task, completed=(number + 1) * len(sizes))
    return found


# -- fitting -----------------------------------------------------------------------------------------------


def _fit(request: Request, tile: int | None) -> Fit | None:
    """The network that best explains a result of `pycollective bench`; None if not requested.

    Raises:
        ValueError: no such result, one without usable rows, or parts of the network are given as well.
    """
    if request.fit is None:
        return None
    given = [name for name in _OPTIONS if request.network.get(name) is not None]
    if given:
        raise ValueError(f"--fit finds what {_OPTIONS[given[0]]} gives: leave one out")
    if set(_given(request.network)) - {"ranks_per_node", "shared_port"} or request.network["ranks_per_node"] != 1:
        raise ValueError("--fit finds one network for all ranks: leave out the options for nodes")
    return fit(_measurements(request.fit, selection.collectives(request.collective)), tile)


def _measurements(path: Path, wanted: Sequence[str]) -> list[Measurement]:
    """Our correct rows of the collectives: those on window arrays, if any, which need no copies."""
    from pycollective.bench.result import read_json
    from pycollective.bench.workload.plan import OURS

    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}{near_files(path)}")
    try:
        rows = read_json(path.read_text()).rows
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    ours = [row for row in rows if row.library == OURS and row.collective in wanted and not row.wrong]
    ours = [row for row in ours if row.path == "windows"] or ours
    if not ours:
        raise ValueError(f"{path}: no correct results of pycollective for {', '.join(wanted)}")
    found = []
    for row in ours:
        name = "direct" if row.topology in ("", "default") else row.topology
        info(name)  # TopologyError for one from a file that is not named
        found.append(Measurement(name, row.collective, row.ranks, row.size, None if row.root < 0 else row.root,
                                 row.time_us * 1e-6))  # fmt: skip
    return found


def _fit_report(fitted: Fit) -> str:
    network = fitted.network
    _, worst = max(zip(map(abs, fitted.errors), fitted.measurements, strict=True), key=itemgetter(0))
    case = f"{worst.topology} {worst.collective}, {worst.ranks} ranks, {format_size(worst.nbytes)}"
    return (
        f"fit to {len(fitted.measurements)} measurements: alpha {format_time(network.latency)}, "
        f"1/beta {_rate(network.bandwidth)}, 1/gamma {_rate(network.reduction)}\n"
        f"error of the fit: median {fitted.median_error:.0%}, root mean square {fitted.rms_error:.0%}, "
        f"largest {fitted.largest_error:.0%} ({case})\n"
    )


def _rate(value: float) -> str:
    return "infinite" if value == math.inf else f"{value / 1e9:.3g} GB/s"


def _fit_plain(fitted: Fit) -> dict[str, Any]:
    """A fit in JSON form; times in us."""
    rows = [
        {**asdict(one), "measured_us": one.seconds * 1e6, "fitted_us": seconds * 1e6}
        for one, seconds in zip(fitted.measurements, fitted.predicted, strict=True)
    ]
    for row in rows:
        del row["seconds"]
    errors = {name: getattr(fitted, f"{name}_error") for name in ("median", "rms", "largest")}
    return {"error": errors, "rows": rows}


# -- output ------------------------------------------------------------------------------------------------


def _write(found: list[Simulation], network: Network, fitted: Fit | None, wanted: Outputs) -> None:
    rows = [_row(simulation) for simulation in found]
    document: dict[str, Any] = {"network": _plain(asdict(network)), "rows": rows}
    if fitted:
        document["fit"] = _fit_plain(fitted)
    outputs.write_json(wanted.json, "pycollective-simulation/1", document)
    if wanted.csv is not None:
        outputs.write_text(wanted.csv, _csv(rows))


def _plot(found: list[Simulation], path: Path, console: Any) -> None:
    """A picture for each collective."""
    from pycollective.cli.simulate_plot import plot

    names = list(dict.fromkeys(one.collective for one in found))
    for name, file in zip(names, outputs.pictures(path, names), strict=True):
        plot([one for one in found if one.collective == name], file)
        console.print(f"plot: {file}", highlight=False)


def _row(simulation: Simulation) -> dict[str, Any]:
    """A simulation in JSON and CSV form: time in us, bandwidths in GB/s, like the bench."""
    kept = ("collective", "ranks", "topology", "root", "small", "messages", "bytes_sent", "bytes_most")
    return {
        **{name: getattr(simulation, name) for name in kept},
        "bytes_between_nodes": simulation.bytes_between_nodes,
        "size": simulation.nbytes,
        "steps": len(simulation.critical_path),
        "time_us": simulation.seconds * 1e6,
        "algbw": simulation.algbw,
        "busbw": simulation.busbw,
    }


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: null."""
    return {name: None if value == math.inf else value for name, value in fields.items()}


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _tables(found: Sequence[Simulation], width: int) -> list[Any]:
    """A row per size, a column per topology; as many tables as the width needs."""
    times: dict[tuple[int, int], dict[str, float]] = {}
    for simulation in found:
        times.setdefault((simulation.ranks, simulation.nbytes), {})[simulation.topology] = simulation.seconds
    parts: list[list[str]] = [[]]
    for name in dict.fromkeys(name for line in times.values() for name in line):
        wide = sum(max(len(one), _CELL) + 3 for one in [*parts[-1], name])
        if parts[-1] and _FIRST_COLUMNS + wide > width:
            parts.append([])
        parts[-1].append(name)
    return [_table(found[0].collective, times, names) for names in parts]


_CELL, _FIRST_COLUMNS = 11, 20
"""Widths of a time with its mark, and of the columns before the topologies'."""


def _table(collective: str, times: dict[tuple[int, int], dict[str, float]], names: Sequence[str]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=collective, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.caption, table.caption_justify = "* the fastest", "left"
    for column in ("ranks", "size"):
        table.add_column(column, justify="right", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", overflow="fold", min_width=_CELL)
    keys = sorted(times)
    for at, key in enumerate(keys):
        least = min(times[key].values()) * (1 + 1e-9)
        cells = []
        for name in names:
            time = times[key].get(name)
            text = "-" if time is None else format_time(time)
            cells.append(f"[bold green]{text} *[/]" if time is not None and time <= least else f"{text}  ")
        last = at + 1 == len(keys) or keys[at + 1][0] != key[0]
        table.add_row(str(key[0]), format_size(key[1]), *cells, end_section=last)
    return table
