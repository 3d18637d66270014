"""How rank 0 tells whoever watches: one JSON object a line, appended to a file or handed to a function.

A file, because it passes through any launcher unharmed, while stdout may carry anything a library likes to
print. Kinds: ``begin`` (groups to come, libraries found), ``note`` (text), ``row`` (a
:class:`~.result.Row`), ``group`` (index of a finished group) and ``end``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["Emit", "EventReader", "to_file", "to_nobody"]

Emit = Callable[[dict[str, Any]], None]


def to_nobody(event: dict[str, Any]) -> None:
    """What every rank but 0 emits to."""


def to_file(path: Path) -> Emit:
    """An emitter that appends to a file, each event at once."""
    file = path.open("a", buffering=1)

    def emit(event: dict[str, Any]) -> None:
        file.write(json.dumps(event) + "\n")

    return emit


class EventReader:
    """Reads the events that have been appended since the last look."""

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
