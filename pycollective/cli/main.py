"""The `pycollective` command. Each command imports its dependencies when it runs."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from pycollective.cli.commands import Command, Group, refusing
from pycollective.cli.options import AllCollectives, Collective, Csv, Json, Positional, Ranks, Root, Sizes, Topology

app = typer.Typer(
    name="pycollective",
    cls=Group,
    help="Collective communication in which a topology is a dozen lines of Python.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    if asked is True:  # incompatible versions of typer and click pass the text "False"
        from pycollective import __version__

        typer.echo(f"pycollective {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="and exit")] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)
    from pycollective import settings

    if isinstance(sys.stdout, io.TextIOWrapper):  # tables are printed even if the terminal has no ✓
        sys.stdout.reconfigure(errors="replace")
    if context.invoked_subcommand not in ("run", "doctor"):  # which report it themselves
        for sentence in settings.unknown(os.environ).values():
            typer.echo(f"pycollective: warning: {sentence}", err=True)


Picture = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="a .png, .svg or .pdf")]


@app.command(cls=Command, context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(help="the program and its arguments; FILE.py is run by this Python")],
    ranks: Annotated[
        int | None, typer.Option("-np", "-n", "--ranks", min=1, max=4096, help="ranks", show_default="one per core")
    ] = None,
    tag: Annotated[bool, typer.Option("--tag", help="write the rank before each line of output")] = False,
    grace: Annotated[
        float, typer.Option(min=0.0, help="seconds that the others may continue after a rank has failed")
    ] = 0.0,
    bind: Annotated[bool, typer.Option("--bind", help="bind every rank to a core of its own, as mpirun does")] = False,
    hosts: Annotated[
        str | None, typer.Option("-H", "--hosts", metavar="HOST:N,...", help="hosts, each with its number of ranks")
    ] = None,
    hostfile: Annotated[Path | None, typer.Option(help="file with a host per line, as HOST slots=N")] = None,
    rsh: Annotated[
        str, typer.Option(metavar="COMMAND", help="with -H: remote shell, as 'ssh -p 2222'", show_default="ssh")
    ] = "",
    interface: Annotated[
        str,
        typer.Option(help="with -H: network interface (name, address or network)", show_default="one that all share"),
    ] = "",
    forward: Annotated[
        list[str] | None, typer.Option("-x", "--forward", metavar="NAME", help="with -H: variable for all ranks")
    ] = None,
) -> None:
    """Run a command on several ranks, of this host or of those given; exit with the first failing rank's code."""
    from pycollective.cli import run as launcher

    if hosts is not None or hostfile is not None:
        with refusing():
            if bind:
                raise ValueError("--bind applies to one host, not to -H")
            raise typer.Exit(
                _run_on_hosts(command, ranks, hosts, hostfile, (rsh, interface, forward or []), tag, grace)
            )
    if rsh or interface or forward:
        raise typer.BadParameter("--rsh, --interface and --forward need -H or --hostfile")
    size = launcher.default_size() if ranks is None else ranks
    with refusing():
        cores = launcher.cores_for(size) if bind else []
    raise typer.Exit(launcher.run(size, command, tag=tag, grace=grace, cores=cores))


def _run_on_hosts(
    command: list[str],
    ranks: int | None,
    hosts: str | None,
    hostfile: Path | None,
    how: tuple[str, str, list[str]],
    tag: bool,
    grace: float,
) -> int:
    import shlex

    from pycollective.cli import hosts as listed
    from pycollective.cli import run_hosts

    if hosts is not None and hostfile is not None:
        raise ValueError("-H and --hostfile exclude each other")
    slots = listed.parse_hosts(hosts) if hosts is not None else listed.read_hostfile(hostfile or Path())
    placed = listed.place_ranks(slots, ranks)
    rsh, interface, names = how
    shell = shlex.split(rsh)
    return run_hosts.run(placed, command, shell=shell, interface=interface, names=names, tag=tag, grace=grace)


@app.command(cls=Command)
def doctor(
    json: Json = None,
    frameworks: Annotated[
        bool, typer.Option("--frameworks", help="also import the frameworks and try their graphs, which takes seconds")
    ] = False,
    network: Annotated[
        bool, typer.Option("--network", help="instead measure the network between hosts; start it with a launcher")
    ] = False,
) -> None:
    """What this machine supports, and which path an allreduce would take; exit code 1 if it is broken."""
    if network:
        from pycollective.cli import doctor_network

        raise typer.Exit(doctor_network.report(json))
    from pycollective.cli.doctor import report

    raise typer.Exit(report(json, frameworks))


@app.command(cls=Command)
def topologies(json: Json = None) -> None:
    """The topologies: their collectives, and their order of reduction."""
    from pycollective.cli.topologies import list_topologies

    list_topologies(json)


@app.command(cls=Command)
def verify(
    topology: Positional = None,
    named: Topology = None,
    ranks: Annotated[
        str | None, typer.Option(help="rank counts, as 1-17 or 2,4,8", show_default="those of 1-17 that it supports")
    ] = None,
    collective: AllCollectives = "",
    json: Json = None,
    plot: Picture = None,
) -> None:
    """Prove every compiled schedule of a topology correct, free of races and deadlocks; exit code 1 if not.

    'all' stands for all topologies. --plot: the steps of each over ranks.
    """
    from pycollective.cli.verify import verify as verify_

    raise typer.Exit(verify_(topology, named, ranks, collective, json, plot))


@app.command(cls=Command)
def draw(
    topology: Positional = None,
    named: Topology = None,
    ranks: Ranks = "8",
    collective: Collective = "allreduce",
    root: Root = 0,
    small: Annotated[bool, typer.Option("--small", help="the variant for small messages")] = False,
    graph: Annotated[bool, typer.Option("--graph", help="only the communication graph, without time")] = False,
    hosts: Annotated[int, typer.Option(help="number of hosts, with equal shares of the ranks")] = 1,
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


@app.command(cls=Command)
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
    from pycollective.cli.explain import Request
    from pycollective.cli.explain import explain as explain_

    raise typer.Exit(explain_(topology, named, Request(ranks, collective, sizes), json, plot))


@app.command(cls=Command)
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


if __name__ == "__main__":
    app()
