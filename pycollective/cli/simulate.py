"""`pycollective simulate`: topologies on a simulated network (see schedule/simulator/simulator.py)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from pycollective.cli import outputs, selection, simulate_output
from pycollective.cli.commands import complain, refusing
from pycollective.cli.options import Collective, Csv, Json, Picture, Positional, Ranks, Root, Sizes, Topology
from pycollective.cli.units import format_size, format_time, parse_duration, parse_rate, parse_size, parse_sizes
from pycollective.schedule import COLLECTIVES, Network, Simulation, describe, get, info, label
from pycollective.schedule import simulate as simulate_call
from pycollective.schedule.language import registry
from pycollective.schedule.language.user_files import near_files
from pycollective.schedule.simulator.fitting import Fit, Measurement
from pycollective.schedule.simulator.fitting import fit as fit_network

Case = tuple[Any, str, int]
"""(topology, collective, ranks)."""
_FITTED = {"latency": "--latency", "bandwidth": "--bandwidth", "reduction": "--reduce"}
"""Parts of the network that --fit finds -> their options."""
_DEFAULTS = {"latency": "5us", "bandwidth": "100Gbit/s", "reduction": "inf"}
_PARSERS = {"latency": parse_duration, "node_latency": parse_duration} | dict.fromkeys(
    ("bandwidth", "node_bandwidth", "reduction"), parse_rate
)


def simulate(
    topology: Positional = None,
    named: Topology = None,
    collective: Collective = "allreduce",
    ranks: Ranks = "4,16,64",
    sizes: Sizes = "1K:1G:x8",
    fit: Annotated[
        Path | None,
        typer.Option(metavar="RESULT", help="take latency, bandwidth and reduce from this JSON of `bench`, fitted"),
    ] = None,
    latency: Annotated[str | None, typer.Option(help="of a message", show_default="5us")] = None,
    bandwidth: Annotated[
        str | None, typer.Option(help="of a rank's port, each way", show_default="100Gbit/s, which is 12.5GB/s")
    ] = None,
    reduce: Annotated[str | None, typer.Option(help="bytes per second that a rank reduces", show_default="inf")] = None,
    node: Annotated[int, typer.Option(help="ranks that share a node")] = 1,
    node_latency: Annotated[
        str | None, typer.Option(help="of a message within a node", show_default="as between nodes")
    ] = None,
    node_bandwidth: Annotated[
        str | None, typer.Option(help="of a rank's port within its node", show_default="as between nodes")
    ] = None,
    shared_port: Annotated[
        bool, typer.Option("--shared-port", help="the ranks of a node share one port to other nodes")
    ] = False,
    root: Root = 0,
    tile: Annotated[str, typer.Option(help="bytes of a tile, e.g. 128K", show_default="chunks are not divided")] = "",
    json: Json = None,
    csv: Csv = None,
    plot: Picture = None,
) -> int:
    """Simulate the cost of collectives on a network with this many ranks, message by message.

    Without a topology: all that implement the collective. --plot: time over size, or over ranks.
    """
    from rich.console import Console

    console = Console(quiet=outputs.STDOUT in (json, csv))
    typed: dict[str, Any] = {"latency": latency, "bandwidth": bandwidth, "reduction": reduce, "ranks_per_node": node}
    typed |= {"node_latency": node_latency, "node_bandwidth": node_bandwidth, "shared_port": shared_port}
    given = {name: value for name, value in typed.items() if value is not None}
    with refusing("matplotlib" if plot else ""):
        wanted, counts = selection.collectives(collective), selection.ranks(ranks)
        cases = _cases(selection.topologies(topology, named), wanted, counts)
        if any(COLLECTIVES[name].rooted for name in wanted) and not 0 <= root < counts[0]:
            raise ValueError(f"root {root} is out of range for {counts[0]} ranks")
        tile_bytes = _tile(tile)
        outputs.check(plot, json, csv)
        fitted = None if fit is None else _fit(fit, given, wanted, tile_bytes)
        network = _network(_DEFAULTS | given) if fitted is None else fitted.network
        found = _simulate(cases, sizes, network, root, tile_bytes)
        if not found:
            return 2
        if fitted:
            console.print(_fit_report(fitted), highlight=False)
        simulate_output.write(found, network, fitted, json, csv)
        for name in dict.fromkeys(one.collective for one in found):
            for table in simulate_output.tables([one for one in found if one.collective == name], console.width):
                console.print(table)
        if plot is not None:
            simulate_output.plot(found, plot, console)
    return 0


def _tile(text: str) -> int | None:
    tile = parse_size(text) if text else None
    if tile == 0:
        raise ValueError("a tile has at least 1 byte")
    return tile


def _network(typed: dict[str, Any]) -> Network:
    parsed: dict[str, Any] = {name: parse(typed[name]) for name, parse in _PARSERS.items() if name in typed}
    return Network(**typed | parsed)


def _cases(instances: Sequence[Any], wanted: Sequence[str], counts: Sequence[int]) -> list[Case]:
    """The cases to simulate, in order; without topologies all that implement a collective."""
    selection.having(instances, wanted)
    for instance in instances:
        selection.supported(instance, counts)
    cases: list[Case] = []
    for name, count in itertools.product(wanted, counts):
        some = instances or [get(row.name) for row in describe() if name in row.collectives]
        cases += [(instance, name, count) for instance in some if registry.supports(instance, count)]
    return cases


def _simulate(cases: list[Case], sizes: str, network: Network, root: int, tile: int | None) -> list[Simulation]:
    """All cases with all sizes; reports those that cannot be simulated."""
    numbers = parse_sizes(sizes)
    if min(numbers) < 1:
        raise ValueError(f"sizes are at least 1 byte, in {sizes!r}")
    found = []
    with outputs.progress("simulate", len(cases) * len(numbers)) as update:
        for done, (instance, name, ranks) in enumerate(cases, 1):
            update(description=f"{label(instance)}, {ranks} ranks")
            try:
                for size in numbers:
                    found.append(simulate_call(instance, name, ranks, size, network, root=root, tile=tile))
                    update(advance=1)
            except Exception as error:  # a user's topology may raise anything
                complain(f"{label(instance)}: {error}{selection.place(error)}")
            update(completed=done * len(numbers))
    return found


def _fit(path: Path, given: dict[str, Any], wanted: Sequence[str], tile: int | None) -> Fit:
    """The network that best explains a result of `pycollective bench`.

    Raises:
        ValueError: no such result, one without usable rows, or parts of the network are given as well.
    """
    for name, option in _FITTED.items():
        if name in given:
            raise ValueError(f"--fit finds what {option} gives: leave one out")
    if given.keys() - {"ranks_per_node", "shared_port"} or given["ranks_per_node"] != 1:
        raise ValueError("--fit finds one network for all ranks: leave out the options for nodes")
    return fit_network(_measurements(path, wanted), tile)


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
