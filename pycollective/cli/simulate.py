"""`pycollective simulate`: topologies on a network that is not there (see schedule/simulator.py)."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pycollective.cli.units import format_size, format_time, parse_duration, parse_rate, parse_size, parse_sizes
from pycollective.errors import Error
from pycollective.schedule import COLLECTIVES, Network, Simulation, describe, get, info, label, simulate


@dataclass(frozen=True)
class Request:
    """What was asked for, as it was typed."""

    topologies: Sequence[str]
    collective: str
    ranks: str
    sizes: str
    root: int
    tile: str
    network: dict[str, Any]  # as for `Network`, with text where there are units


@dataclass(frozen=True)
class Outputs:
    """Where results go besides the table; Path("-") is stdout."""

    json: Path | None = None
    csv: Path | None = None
    plot: Path | None = None


def run(request: Request, outputs: Outputs) -> int:
    """The command: simulate all that is asked for, and print a table; 2 when it cannot."""
    from rich.console import Console

    errors = Console(stderr=True)

    def complain(text: object) -> None:
        errors.print("✗", end=" ", style="red", highlight=False)
        errors.print(str(text), markup=False, highlight=False, soft_wrap=True)

    try:
        _check(outputs)
        network = _network(request.network)
        cases = _cases(request)
        found = _simulate(cases, request, network, complain, errors)
        if found:
            _write(found, network, outputs)
    except ImportError as error:
        complain(f"{error}; plots need matplotlib: pip install 'pycollective[plot]'")
        return 2
    except (Error, ValueError, OSError, SyntaxError) as error:
        complain(error)
        return 2
    return 0 if found else 2


def _network(typed: dict[str, Any]) -> Network:
    parsers = {"latency": parse_duration, "node_latency": parse_duration}
    parsers |= dict.fromkeys(("bandwidth", "node_bandwidth", "reduction"), parse_rate)
    fields: dict[str, Any] = {name: value for name, value in typed.items() if value is not None}
    for name in parsers.keys() & fields.keys():
        fields[name] = parsers[name](fields[name])
    return Network(**fields)


def _cases(request: Request) -> list[tuple[Any, int]]:
    """(topology, ranks) in the order in which they are simulated."""
    from pycollective.cli.verify import find, parse_ranks

    if request.collective not in COLLECTIVES:
        raise ValueError(f"no collective is called {request.collective!r}; there are {', '.join(COLLECTIVES)}")
    if request.topologies:
        instances = [instance for where in request.topologies for instance in find(where)]
    else:
        instances = [get(row.name) for row in describe() if request.collective in row.collectives]
    for instance in instances:
        if request.collective not in info(instance).collectives:
            there = ", ".join(info(instance).collectives)
            raise ValueError(f"{label(instance)} has no {request.collective}; it has {there}")
    counts = parse_ranks(request.ranks)
    if COLLECTIVES[request.collective].rooted and not 0 <= request.root < counts[0]:
        raise ValueError(f"root {request.root} is out of range for {counts[0]} ranks")
    return [(instance, ranks) for ranks in counts for instance in dict.fromkeys(instances)]


def _simulate(
    cases: list[tuple[Any, int]], request: Request, network: Network, complain: Any, console: Any
) -> list[Simulation]:
    """All cases with all sizes; those that cannot be simulated are complained about."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from pycollective.cli.verify import place

    sizes = parse_sizes(request.sizes)
    tile = parse_size(request.tile) if request.tile else None
    if min(sizes) < 1:
        raise ValueError(f"sizes are at least 1 byte, in {request.sizes!r}")
    found = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("simulate", total=len(cases) * len(sizes))
        for number, (instance, ranks) in enumerate(cases):
            progress.update(task, description=f"{label(instance)}, {ranks} ranks")
            try:
                for size in sizes:
                    found.append(
                        simulate(instance, request.collective, ranks, size, network, root=request.root, tile=tile)
                    )
                    progress.advance(task)
            except Exception as error:  # a user's topology may raise anything
                complain(f"{label(instance)}: {error}{place(error)}")
            progress.update(task, completed=(number + 1) * len(sizes))
    return found


def _check(outputs: Outputs) -> None:
    """What cannot be written is said before anything is simulated."""
    from pycollective.cli.draw import FORMATS

    if outputs.json == outputs.csv == Path("-"):
        raise ValueError("one of --json and --csv can have stdout")
    if outputs.plot is not None:
        if outputs.plot.suffix not in FORMATS:
            raise ValueError(f"{outputs.plot}: write one of {', '.join(FORMATS)}")
        import matplotlib  # noqa: F401
    for path in (outputs.json, outputs.csv, outputs.plot):
        if path is not None and path != Path("-") and not path.absolute().parent.is_dir():
            raise OSError(f"{path}: there is no folder {path.parent}")


def _write(found: list[Simulation], network: Network, outputs: Outputs) -> None:
    from rich.console import Console

    rows = [_row(simulation) for simulation in found]
    document = {"schema": "pycollective-simulation/1", "network": _plain(asdict(network)), "rows": rows}
    for path, text in ((outputs.json, json.dumps(document, indent=1) + "\n"), (outputs.csv, _csv(rows))):
        if path == Path("-"):
            sys.stdout.write(text)
        elif path is not None:
            path.write_text(text)
    if outputs.plot is not None:
        from pycollective.cli.simulate_plot import plot

        plot(found, outputs.plot)
    if Path("-") in (outputs.json, outputs.csv):
        return
    console = Console()
    if not console.is_terminal:  # columns are kept, not folded
        console.width = max(console.width, 140)
    console.print(_table(found))
    if outputs.plot is not None:
        console.print(f"plot: {outputs.plot}", highlight=False)


def _row(simulation: Simulation) -> dict[str, Any]:
    """What JSON and CSV say of one: time in us, bandwidths in GB/s, as the bench."""
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


def _table(found: Sequence[Simulation]) -> Any:
    """A line a size, a column a topology."""
    from rich import box
    from rich.table import Table

    times: dict[tuple[int, int], dict[str, float]] = {}
    for simulation in found:
        times.setdefault((simulation.ranks, simulation.nbytes), {})[simulation.topology] = simulation.seconds
    names = list(dict.fromkeys(name for line in times.values() for name in line))
    table = Table(
        title=found[0].collective, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    table.caption, table.caption_justify = "* the fastest", "left"
    for column in ("ranks", "size", *names):
        table.add_column(column, justify="right", no_wrap=True)
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
