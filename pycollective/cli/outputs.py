"""Where results go: --json, --csv and --plot."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pycollective.cli.options import FORMATS

STDOUT = Path("-")


def check(plot: Path | None, *files: Path | None) -> None:
    """What cannot be written is reported before any work is done.

    Raises:
        ValueError: two outputs for standard output, or a picture of an unknown kind.
        OSError: no such folder. ImportError: matplotlib is not installed.
    """
    if files.count(STDOUT) > 1:
        raise ValueError("one of --json and --csv can have standard output")
    for path in (plot, *files):
        if path is not None and path != STDOUT:
            if path.is_dir():
                raise IsADirectoryError(f"{path} is a folder; name a file")
            if not path.absolute().parent.is_dir():
                raise FileNotFoundError(f"{path}: there is no folder {path.parent}")
    if plot is not None:
        check_picture(plot)


def check_picture(path: Path) -> None:
    """ValueError where a picture cannot have that suffix; ImportError where matplotlib is not installed."""
    if path.suffix not in FORMATS:
        raise ValueError(f"{path}: write one of {', '.join(FORMATS)}")
    import matplotlib  # noqa: F401


def pictures(path: Path, labels: Sequence[str]) -> list[Path]:
    """The files of several pictures: `path` for one, else `stem-label.suffix` for each."""
    if len(labels) == 1:
        return [path]
    clean = ["".join(c if c.isalnum() or c in "-_" else "-" for c in label).strip("-") for label in labels]
    return [path.with_name(f"{path.stem}-{label}{path.suffix}") for label in clean]


def write_text(path: Path, text: str) -> None:
    """Into a file, or to standard output."""
    if path == STDOUT:
        sys.stdout.write(text)
    else:
        path.write_text(text)


def write_json(path: Path | None, schema: str, content: dict[str, Any]) -> None:
    """A document with the name of its schema; nothing where there is no path."""
    if path is not None:
        write_text(path, json.dumps({"schema": schema, **content}, indent=1) + "\n")
