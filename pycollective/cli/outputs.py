"""Destinations of results: --json, --csv and --plot."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pycollective.cli.options import FORMATS

STDOUT = Path("-")


def check(plot: Path | None, *files: Path | None) -> None:
    """Report outputs that cannot be written, before any work is done.

    Raises:
        ValueError: two outputs to standard output, or an unknown picture format.
        OSError: no such folder. ImportError: matplotlib is not installed.
    """
    if files.count(STDOUT) > 1:
        raise ValueError("one of --json and --csv can use standard output")
    for path in (plot, *files):
        if path is not None and path != STDOUT:
            if path.is_dir():
                raise IsADirectoryError(f"{path} is a folder; name a file")
            if not path.absolute().parent.is_dir():
                raise FileNotFoundError(f"{path}: there is no folder {path.parent}")
    if plot is not None:
        check_picture(plot)


def check_picture(path: Path) -> None:
    """ValueError if a picture cannot have that suffix; ImportError if matplotlib is not installed."""
    if path.suffix not in FORMATS:
        raise ValueError(f"{path}: write one of {', '.join(FORMATS)}")
    import matplotlib  # noqa: F401


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar on standard error if that is a terminal. Yields a function that updates it, see rich's Progress.update."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        yield functools.partial(bar.update, bar.add_task(what, total=total))


def pictures(path: Path, labels: Sequence[str]) -> list[Path]:
    """The files of several pictures: `path` for one, else `stem-label.suffix` for each."""
    if len(labels) == 1:
        return [path]
    clean = ["".join(c if c.isalnum() or c in "-_" else "-" for c in label).strip("-") for label in labels]
    return [path.with_name(f"{path.stem}-{label}{path.suffix}") for label in clean]


def write_text(path: Path, text: str) -> None:
    """Write to a file, or to standard output."""
    if path == STDOUT:
        sys.stdout.write(text)
    else:
        path.write_text(text)


def write_json(path: Path | None, schema: str, content: dict[str, Any]) -> None:
    """Write a document with the name of its schema; does nothing without a path."""
    if path is not None:
        write_text(path, json_text({"schema": schema, **content}) + "\n")


def json_text(value: Any, indent: int = 0) -> str:
    """JSON with a line for each row of a table, an object in a list, so that files of two runs can be compared."""
    inner, outer = "\n" + " " * (indent + 1), "\n" + " " * indent
    if isinstance(value, dict) and value:
        items = [f"{json.dumps(str(name))}: {json_text(item, indent + 1)}" for name, item in value.items()]
        return "{" + inner + f",{inner}".join(items) + outer + "}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[" + inner + f",{inner}".join(map(json.dumps, value)) + outer + "]"
    return json.dumps(value)
