"""The commands about topologies: their options and help. Each imports its dependencies when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pycollective.cli.commands import refusing
from pycollective.cli.options import (
    AllCollectives,
    Collective,
    Csv,
    Json,
    Picture,
    Positional,
    Ranks,
    Root,
    Sizes,
    Topology,
)


def topologies(json: Json = None) -> None:
    """The topologies: their collectives, and their order of reduction."""
    from pycollective.cli.topologies import list_topologies

    list_topologies(json)


def verify(
    topology: Positional = None,
    named: Topology = None,
    ranks: Annotated[
        str | None, typer.Option(help="rank counts, as 1-17 or 2,4,8", show_default="those of 1-17 that it supports")
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option(
            help="numbers of hosts with equal shares of the ranks, as 2 or 1-3",
            show_default="1; with 2 to 8 ranks also 2, 3, one for each rank, and 2 with alternating ranks",
        ),
    ] = None,
    collective: AllCollectives = "",
    json: Json = None,
    plot: Picture = None,
) -> None:
    """Prove every compiled schedule of a topology correct, free of races and deadlocks; exit code 1 if not.

    'all' stands for all topologies. --plot: the steps of each over ranks.
    """
    from pycollective.cli.verify import verify as verify_

    raise typer.Exit(verify_(topology, named, ranks, hosts, collective, json, plot))


def draw(
    topology: Positional = None,
    named: Topology = None,
    ranks: Ranks = "8",
    collective: Collective = "allreduce",
    root: Root = 0,
    small: Annotated[bool, typer.Option("--small", help="the variant for small messages")] = False,
    graph: Annotated[bool, typer.Option("--graph", help="only the communication graph, without time")] = False,
    hosts: Annotated[
        int | None,
        typer.Option(help="number of hosts, with equal shares of the ranks", show_default="1; 2 if it looks at hosts"),
    ] = None,
    mix: Annotated[
        list[str] | None,
        typer.Option(
            "--mix",
            metavar="GRAPH",
            help="instead of a topology: a graph of neighbours for gossip, as one_peer or 'random_pairs(seed=3)'",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="of --mix: number of steps")] = 1,
    json: Json = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            "--out",
            metavar="FILE",
            help="a .png, .svg or .pdf; the stem if there are several",
            show_default="topology.png or graph.png; none with --json",
        ),
    ] = None,
) -> None:
    """Draw the data movement between ranks, step by step.

    --json: every step with its time, chunk, sources, targets and waits, and the number of chunks between ranks; with
    --mix the weights of all ranks and the spectral gap.
    """
    if mix:
        from pycollective.cli import draw_mix

        with refusing():
            if topology or named:
                raise ValueError("--mix draws graphs of neighbours: name no topology")
        raise typer.Exit(draw_mix.draw(mix, ranks, steps, json, plot))
    from pycollective.cli.draw import Picture as Drawn
    from pycollective.cli.draw import draw as draw_

    raise typer.Exit(draw_(topology, named, Drawn(ranks, collective, root, small, graph, hosts), json, plot))


def explain(
    topology: Positional = None,
    named: Topology = None,
    ranks: Annotated[
        str, typer.Option(help="rank counts, as 1-17 or 2,4,8", show_default="one per core, at least 2")
    ] = "",
    collective: Collective = "allreduce",
    sizes: Sizes = "1K,1M,64M",
    json: Json = None,
    plot: Picture = None,
) -> None:
    """Show which topology, variant, memory and path calls take on ranks of this host, and why.

    Without a topology: the default one. --plot: the schedules that they run.
    """
    from pycollective.cli.explain import explain as explain_

    raise typer.Exit(explain_(topology, named, ranks, collective, sizes, json, plot))


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
) -> None:
    """Simulate the cost of collectives on a network with this many ranks, message by message.

    Without a topology: all that implement the collective. --plot: time over size, or over ranks.
    """
    from pycollective.cli import simulate as command

    network = {
        "latency": latency,
        "bandwidth": bandwidth,
        "reduction": reduce,
        "ranks_per_node": node,
        "node_latency": node_latency,
        "node_bandwidth": node_bandwidth,
        "shared_port": shared_port,
    }
    names = [*(topology or ()), *(named or ())]
    request = command.Request(names, collective, ranks, sizes, root, tile, network, fit)
    raise typer.Exit(command.run(request, command.Outputs(json, csv, plot)))
