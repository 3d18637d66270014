"""The `pycollective` command. Its commands are listed in commands.py, which imports each when it is called."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from pycollective.cli.commands import SETTINGS, Command, Group
from pycollective.cli.run_command import run

app = typer.Typer(
    name="pycollective",
    cls=Group,
    help="Collective communication in which a topology is a dozen lines of Python.",
    invoke_without_command=True,
    **SETTINGS,
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


if __name__ == "__main__":
    app()
