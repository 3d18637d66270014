"""The `pycollective` command. Each command imports what it needs when it runs."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


class _Commands(TyperGroup):
    """Adds `bench`, whose module is imported only when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return [*names, "bench"] if importlib.util.find_spec("pycollective.bench") else names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name != "bench" or not importlib.util.find_spec("pycollective.bench"):
            return super().get_command(ctx, cmd_name)
        command = typer.main.get_command(importlib.import_module("pycollective.bench.cli").app)
        command.name = "bench"
        return command


app = typer.Typer(
    name="pycollective",
    cls=_Commands,
    help="Collective communication in which a topology is a dozen lines of Python.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(asked: bool) -> None:
    if asked is True:  # typer and click that do not fit together have handed over the text "False"
        from pycollective import __version__

        typer.echo(f"pycollective {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_say_version, is_eager=True, help="and exit")] = False,
) -> None:
    from pycollective import settings

    if isinstance(sys.stdout, io.TextIOWrapper):  # where the terminal has no ✓, a table is still printed
        sys.stdout.reconfigure(errors="replace")
    if context.invoked_subcommand not in ("run", "doctor"):  # which report it themselves
        for sentence in settings.unknown(os.environ).values():
            typer.echo(f"pycollective: warning: {sentence}", err=True)


_TOPOLOGY = "a name, 'name(parameter=value)', FILE.py:NAME or FILE.py"


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def run(
    command: Annotated[list[str], typer.Argument(help="the program and its arguments; FILE.py is run by this Python")],
    ranks: Annotated[
        int | None, typer.Option("-np", "-n", "--ranks", min=1, max=4096, help="ranks", show_default="one a core")
    ] = None,
    tag: Annotated[bool, typer.Option("--tag", help="write the rank before each line of output")] = False,
    grace: Annotated[
        float, typer.Option(min=0.0, help="seconds that the others may go on after a rank has failed")
    ] = 0.0,
) -> None:
    """Run a command on several ranks of this host; exit with the first failing rank's code."""
    from pycollective.cli import run as launcher

    size = launcher.default_size() if ranks is None else ranks
    raise typer.Exit(launcher.run(size, command, tag=tag, grace=grace))


@app.command()
def doctor(json: Annotated[bool, typer.Option("--json", help="for machines")] = False) -> None:
    """What this machine offers, and which path an allreduce would take; exit code 1 if it is broken."""
    from pycollective.cli.doctor import report

    raise typer.Exit(report(json))


@app.command()
def topologies(json: Annotated[bool, typer.Option("--json", help="for machines")] = False) -> None:
    """The topologies: their collectives, and the order in which they reduce."""
    from pycollective.cli.verify import list_topologies

    list_topologies(json)


@app.command()
def verify(
    topology: Annotated[str, typer.Argument(help=f"{_TOPOLOGY}; or 'all'")],
    ranks: Annotated[str, typer.Option(help="rank counts, as 1-17 or 2,4,8")] = "1-17",
    collective: Annotated[str, typer.Option(help="collectives, separated by commas", show_default="all it has")] = "",
) -> None:
    """Prove every compiled schedule of a topology right, free of races and deadlock; exit code 1 if not."""
    from pycollective.cli.verify import verify as verify_

    raise typer.Exit(verify_(topology, ranks, collective))


@app.command()
def draw(
    topology: Annotated[str, typer.Argument(help=_TOPOLOGY)],
    out: Annotated[Path, typer.Option(help="a .png, .svg or .pdf")] = Path("topology.png"),
    ranks: Annotated[int, typer.Option(min=1, help="ranks")] = 8,
    collective: Annotated[str, typer.Option(help="which of its collectives")] = "allreduce",
    root: Annotated[int, typer.Option(help="root of the collectives that have one")] = 0,
    small: Annotated[bool, typer.Option("--small", help="the variant for small messages")] = False,
) -> None:
    """Draw who sends what to whom, step by step."""
    from pycollective.cli.draw import draw as draw_

    raise typer.Exit(draw_(topology, out, ranks, collective, root, small))


@app.command()
def simulate(
    topology: Annotated[
        list[str] | None, typer.Argument(help=_TOPOLOGY, show_default="all that have the collective")
    ] = None,
    collective: Annotated[str, typer.Option(help="which of their collectives")] = "allreduce",
    ranks: Annotated[str, typer.Option(help="rank counts, as 4,16,64")] = "4,16,64",
    sizes: Annotated[str, typer.Option(help="FROM:TO:xFACTOR, FROM:TO:+STEP, or a list")] = "1K:1G:x8",
    latency: Annotated[str, typer.Option(help="of a message")] = "5us",
    bandwidth: Annotated[str, typer.Option(help="of a rank's port, each way; 12.5GB/s is 100Gbit/s")] = "100Gbit/s",
    reduce: Annotated[str, typer.Option(help="bytes a second that a rank reduces")] = "inf",
    node: Annotated[int, typer.Option(help="ranks that share a node")] = 1,
    node_latency: Annotated[
        str | None, typer.Option(help="of a message within a node", show_default="as between nodes")
    ] = None,
    node_bandwidth: Annotated[
        str | None, typer.Option(help="of a rank's port within its node", show_default="as between nodes")
    ] = None,
    shared_port: Annotated[
        bool, typer.Option("--shared-port", help="the ranks of a node share one port to the others")
    ] = False,
    root: Annotated[int, typer.Option(help="root of the collectives that have one")] = 0,
    tile: Annotated[str, typer.Option(help="bytes of a tile, as 128K", show_default="chunks go in one piece")] = "",
    json: Annotated[Path | None, typer.Option(help="write JSON; '-': to stdout, and nothing else")] = None,
    csv: Annotated[Path | None, typer.Option(help="write CSV; '-': to stdout, and nothing else")] = None,
    plot: Annotated[Path | None, typer.Option(help="a .png, .svg or .pdf: time over size, or over ranks")] = None,
) -> None:
    """What collectives cost on a network with so many ranks, message by message, without the network."""
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
    request = command.Request(topology or (), collective, ranks, sizes, root, tile, network)
    raise typer.Exit(command.run(request, command.Outputs(json, csv, plot)))


if __name__ == "__main__":
    app()
