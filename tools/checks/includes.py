"""Rejects upward includes. `python tools/checks/includes.py` names each and exits with 1.

An `#include "folder/..."` in csrc/ must not name a higher folder than its own (INCLUDES, bottom first), and neither
folders nor files may include each other in a cycle. For Python's imports see tools/checks/imports.py.
"""

from __future__ import annotations

import graphlib
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

INCLUDES: list[set[str]] = [
    {"base"},
    {"dtype", "schedule"},
    {"executor", "link", "rail", "window"},
    {"engine", "progress"},
    {"bindings"},
    {"frameworks"},
]
"""Folders of csrc/ by level, lowest first."""

_INCLUDE = re.compile(r'^\s*#\s*include\s*"(([^"/]+)/[^"]+)"')


def check(root: Path) -> list[str]:
    """Every violation under `root`, as `file:line: description`."""
    return list(_check(root))


def _check(root: Path) -> Iterator[str]:
    level = {folder: i for i, folders in enumerate(INCLUDES) for folder in folders}
    folders: dict[str, dict[str, str]] = {}
    files: dict[str, dict[str, str]] = {}
    for file in sorted((root / "csrc").rglob("*")):
        if file.suffix not in {".h", ".hpp", ".cuh", ".cpp", ".cu", ".inc"}:
            continue
        folder = file.relative_to(root / "csrc").parts[0]
        if folder not in level:
            yield f"{file.relative_to(root)}:1: {folder!r} has no level in tools/checks/includes.py"
            continue
        for number, line in enumerate(file.read_text().splitlines(), 1):
            found = _INCLUDE.match(line)
            if not found or not (root / "csrc" / found[2]).is_dir():
                continue
            where = f"{file.relative_to(root)}:{number}"
            files.setdefault(file.relative_to(root / "csrc").as_posix(), {}).setdefault(found[1], where)
            if found[2] == folder:
                continue
            if level.get(found[2], len(level)) > level[folder]:
                yield f"{where}: {folder} must not include {found[2]}"
            folders.setdefault(folder, {}).setdefault(found[2], where)
    yield from _circles(folders)
    yield from _circles(files)


def _circles(edges: dict[str, dict[str, str]]) -> Iterator[str]:
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        circle = error.args[1]  # each is included by the next, and the last is the first
        where = min(edges[one][other] for other, one in itertools.pairwise(circle))
        yield f"{where}: {' and '.join(sorted({*circle}))} include each other"


if __name__ == "__main__":
    problems = check(Path(__file__).resolve().parents[2])
    print("\n".join(problems) or "includes run downward")
    sys.exit(bool(problems))
