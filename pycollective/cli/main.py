"""The `pycollective` command. Each command imports its dependencies when it runs."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from pycollective.cli.commands import Command, Group
from pycollective.cli.options import Json
from pycollective.cli.run_command import run
from pycollective.cli.topology_commands import draw, explain, simulate, topologies, verify

app = typer.Typer(
    name="pycollective",
    cls=Group,
    help="Collective communication in which a topology is a dozen lines of Python.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # whose panels cut names of options at 80 columns
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


app.command(cls=Command, context_settings={"allow_interspersed_args": False})(run)


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
        from pycollective.cli.doctor.network import report as report_network

        raise typer.Exit(report_network(json))
    from pycollective.cli.doctor.doctor import report

    raise typer.Exit(report(json, frameworks))


for _command in (topologies, verify, draw, explain, simulate):
    app.command(cls=Command)(_command)


if __name__ == "__main__":
    app()
