"""Options that several of the benchmarks' programs share, and their command lines."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

import typer

from pycollective.cli.commands import choose

__all__ = ["Neighbours", "Quick", "RankCounts", "chosen", "new_app", "out_option"]

Quick = Annotated[bool, typer.Option("--quick", help="fewer and shorter rounds: to see that it works")]
RankCounts = Annotated[str, typer.Option(help="rank counts to measure")]
Neighbours = Annotated[int, typer.Option(metavar="K", min=0, help="busy processes (nice 19) beside it")]


def chosen(text: str, known: Collection[str], what: str) -> tuple[str, ...]:
    """The words of a list that is separated by commas; ValueError with the nearest name for one that is unknown."""
    return tuple(choose(word, known, what) for word in text.split(",") if word)


def out_option(name: str) -> Any:
    """``--out`` of a program that writes NAME.json and NAME.md."""
    return typer.Option(help=f"folder for {name}.json and {name}.md")


def new_app() -> typer.Typer:
    """The command line of a program: with plain help, and Python's own reports of unexpected errors."""
    return typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # whose panels cut names of options at 80 columns
        context_settings={"help_option_names": ["-h", "--help"]},
    )
