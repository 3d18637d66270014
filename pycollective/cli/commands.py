"""The commands, and their common behaviour: an error is one line with the nearest valid name, and exit code 2."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from pycollective.errors import Error
from pycollective.names import meant

# click's, wherever this version of typer includes it
UsageError: Any = typer.BadParameter.__bases__[0]
_ClickException: Any = UsageError.__bases__[0]

OPTIONAL = ("--json",)
"""Options whose value may be omitted: then it is "-", standard output."""


def complain(what: object) -> None:
    """Write one line to standard error."""
    typer.echo(f"✗ {' '.join(str(what).split())}", err=True)


@contextlib.contextmanager
def refusing(package: str = "") -> Iterator[None]:
    """Report a command's errors in one line, with exit code 2.

    Args:
        package: of PyPI, that provides what the body imports.
    """
    try:
        yield
    except ImportError as error:
        if not package:
            raise
        complain(f"{error}; pip install {package}")
        raise typer.Exit(2) from error
    except BrokenPipeError:  # the reader of standard output has closed it
        raise
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else error)
        raise typer.Exit(2) from error
    except (Error, ValueError, SyntaxError) as error:
        complain(error)
        raise typer.Exit(2) from error


def choose(name: str, known: Collection[str], kind: str) -> str:
    """The name, if it is known.

    Raises:
        ValueError: it is not; the message has the nearest name, and all names.
    """
    if name in known:
        return name
    raise ValueError(f"no {kind} is called {name[:80]!r}{meant(name, known)} (there are {', '.join(known)})")


def with_values(args: Sequence[str], options: Collection[str] = OPTIONAL) -> list[str]:
    """The arguments with "-" as the value of each option in `options` that stands alone."""
    filled: list[str] = []
    for at, word in enumerate(args):
        if word == "--":
            return [*filled, *args[at:]]
        following = args[at + 1] if at + 1 < len(args) else "-x"
        alone = following.startswith("-") and following != "-"
        filled.append(f"{word}=-" if word in options and alone else word)
    return filled


MODULES = {
    "doctor": ("cli.doctor.doctor", "Show what this machine supports, and which path calls take."),
    "topologies": ("cli.topologies", "List the topologies, their collectives and order of reduction."),
    "verify": ("cli.verify", "Prove all schedules of a topology right, without deadlock."),
    "draw": ("cli.draw", "Draw the data movement between ranks, step by step."),
    "explain": ("cli.explain", "Show which topology, variant and path a call takes."),
    "simulate": ("cli.simulate", "Simulate topologies on a network with many ranks."),
    "bench": ("bench.cli", "Measure topologies against each other and other libraries."),
    "tune": ("bench.tune", "Measure which topology, variant and tile are fastest for each call."),
    "demo": ("bench.demo", "Train a network with each topology, then race the topologies."),
}
"""Command -> the module with the function of this name, imported on use, and its line in the list of commands."""
SETTINGS: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,  # whose panels cut names of options at 80 columns
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
"""Arguments of typer.Typer for the command line and each of its commands."""


class _OneLineErrors:
    """Base of a typer command or group whose usage errors end the process with one line and exit code 2."""

    def main(self, *args: Any, standalone_mode: bool = True, **more: Any) -> Any:
        run = super().main  # type: ignore[misc]
        if not standalone_mode:
            return run(*args, standalone_mode=False, **more)
        try:
            code = run(*args, standalone_mode=False, **more)
        except _ClickException as error:
            complain(error.format_message())
            sys.exit(2)
        except typer.Abort:
            sys.exit(130)
        sys.exit(code if isinstance(code, int) else 0)


class Command(_OneLineErrors, TyperCommand):
    """A command; `--json` without a value stands for `--json -`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        takes = {name for parameter in self.params for name in parameter.opts if not getattr(parameter, "is_flag", 0)}
        parsed: list[str] = super().parse_args(ctx, with_values(args, takes.intersection(OPTIONAL)))
        return parsed


class Group(_OneLineErrors, TyperGroup):
    """The commands, including those of MODULES."""

    def list_commands(self, ctx: Any) -> list[str]:
        names = [*super().list_commands(ctx), *MODULES]
        if importlib.util.find_spec("pycollective.bench"):
            return names
        return [name for name in names if not MODULES.get(name, ("",))[0].startswith("bench.")]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in MODULES:
            return Command(cmd_name, help=MODULES[cmd_name][1])  # enough for the list of commands
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            try:
                choose(name, known, "command")
            except ValueError as error:
                raise UsageError(str(error), ctx) from None
        if name in known and name in MODULES:
            app = typer.Typer(add_completion=False, **SETTINGS)
            app.command(name, cls=Command)(getattr(importlib.import_module(f"pycollective.{MODULES[name][0]}"), name))
            return name, typer.main.get_command(app), args[1:]
        return super().resolve_command(ctx, args)
