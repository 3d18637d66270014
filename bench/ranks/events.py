"""Events that rank 0 reports: one JSON object per line, appended to a file or passed to a function.

A file, because it works with any launcher, while libraries may print anything to stdout. Kinds: ``begin`` (number of
groups, libraries found), ``note`` (text), ``row`` (a Row), ``contender`` (a row of ``bench.engine``), ``group`` (one is
finished) and ``end``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["Emit", "discard", "read_new", "to_file"]

Emit = Callable[[dict[str, Any]], None]


def discard(event: dict[str, Any]) -> None:
    """The emitter of every rank but 0."""


def to_file(path: Path) -> Emit:
    """An emitter that appends each event to a file immediately."""
    file = path.open("a", buffering=1)

    def emit(event: dict[str, Any]) -> None:
        file.write(json.dumps(event) + "\n")

    return emit


def read_new(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """The events that have been appended to a file since the last call."""
    while (line := file.readline()).endswith(b"\n"):
        yield json.loads(line)
    file.seek(-len(line), os.SEEK_CUR)  # still being written
