"""Lookup of the topologies, collectives and rank counts named on a command line."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pycollective.cli.commands import choose
from pycollective.errors import Error, TopologyError
from pycollective.schedule import COLLECTIVES, get, info, label, load, names
from pycollective.schedule.language import registry
from pycollective.schedule.language.program import MOST_RANKS


def topologies(positional: Sequence[str] | None, named: Sequence[str] | None) -> list[Any]:
    """The topologies that a command is about, without duplicates; empty if none is named.

    Raises:
        TopologyError, OSError, SyntaxError: see `find`.
    """
    words = [*(positional or ()), *(named or ())]
    return list(dict.fromkeys(instance for where in words for instance in find(where)))


def find(where: str) -> list[Any]:
    """The topologies that an argument denotes: a name, "FILE.py:NAME", all of "FILE.py", or "all".

    Raises:
        TopologyError: nothing of that name or in that file, or the file raises an error when it is run.
        OSError, SyntaxError: the file cannot be read or compiled.
    """
    try:
        return _find(where)
    except (Error, OSError, SyntaxError):
        raise
    except Exception as error:  # a user's file may raise anything
        raise TopologyError(f"{where!r}: {type(error).__name__}: {error}{place(error)}") from error


def _find(where: str) -> list[Any]:
    if where == "all":
        return [get(name) for name in names()]
    if ".py:" in where or not where.endswith(".py"):
        return [registry.find(where)]
    try:
        return [load(where)]
    except TopologyError:
        found = [get(row.cls) for row in registry.defined_in(Path(where).resolve())]
        if not found:
            raise
        return found


def place(error: BaseException) -> str:
    """Where an error other than ours was raised (ours name the place themselves): " (FILE:LINE)"."""
    if isinstance(error, Error):
        return ""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f" ({last.filename}:{last.lineno})"


def collectives(text: str) -> list[str]:
    """The names in "allreduce,broadcast"; ValueError with the nearest name if one does not exist."""
    return [choose(name.strip(), COLLECTIVES, "collective") for name in text.split(",")]


def having(instances: Sequence[Any], wanted: Sequence[str]) -> None:
    """ValueError if a topology lacks one of the collectives."""
    for instance in instances:
        there = info(instance).collectives
        for name in wanted:
            if name not in there:
                raise ValueError(f"{label(instance)} has no {name}; it has {', '.join(there)}")


def ranks(text: str, what: str = "rank", example: str = "1-17 or 2,4,8") -> list[int]:
    """`"1-3,8"` as [1, 2, 3, 8]: numbers of ranks, or of what is counted instead.

    Raises:
        ValueError: anything else, or a number below 1 or above MOST_RANKS. It shows the example.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            begin, end = int(first), int(last if dash else first)
        except ValueError:
            raise ValueError(f"{what} counts are written as {example}, not {text[:80]!r}") from None
        if begin < 1 or end > MOST_RANKS:
            raise ValueError(f"{what} counts are from 1 to {MOST_RANKS}, in {text[:80]!r}")
        found.update(range(begin, end + 1))
    if not found:
        raise ValueError(f"{what} counts are written as {example}, not {text[:80]!r}")
    return sorted(found)


def supported(instance: Any, counts: Sequence[int]) -> list[int]:
    """The numbers of ranks that a topology supports; TopologyError if it supports none of them."""
    found = [count for count in counts if registry.supports(instance, count)]
    if not found:
        registry.check_ranks(instance, counts[0])
    return found
