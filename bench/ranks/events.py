"""Events that rank 0 reports: one JSON object per line, appended to a file or passed to a function.

A file, because it works with any launcher, while libraries may print anything to stdout. Kinds: ``begin``
(number of groups, libraries found), ``note`` (text), ``row`` (a
:class:`~..result.Row`), ``contender`` (a row of ``bench.engine``), ``group`` (index of a finished group) and ``end``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["Emit", "EventReader", "discard", "to_file"]

Emit = Callable[[dict[str, Any]], None]


def discard(event: dict[str, Any]) -> None:
    """The emitter of every rank but 0."""


def to_file(path: Path) -> Emit:
    """An emitter that appends each event to a file immediately."""
    file = path.open("a", buffering=1)

    def emit(event: dict[str, Any]) -> None:
        file.write(json.dumps(event) + "\n")

    return emit


class EventReader:
    """Reads the events that have been appended since the last call."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def __call__(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # still being written
                self._offset += len(line)
                yield json.loads(line)
