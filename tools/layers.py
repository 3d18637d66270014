"""Refuses upward imports and includes. `python tools/layers.py` names each and exits with 1.

Python: every import statement of `pycollective/` and `bench/`, wherever it stands, is looked up in IMPORTS.
C++: an `#include "folder/..."` must not name a higher folder than its own (INCLUDES, bottom first), and the
folders must not include each other in a circle.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

SURFACE = "__init__"
"""The package's front door, `import pycollective`."""

_COMM = {"errors", "checks", "dtypes", "notebook", "settings", "typing", "schedule", "comm", "_core"}
_FRAMEWORK = _COMM | {SURFACE, "optim"}
IMPORTS: dict[str, set[str]] = {
    "errors": {"notebook"},  # how a cell is named
    "checks": set(),
    "settings": set(),
    "dtypes": set(),
    "notebook": set(),
    "typing": set(),
    "schedule": {"errors", "checks", "notebook"},
    "topologies": {"checks", "schedule"},
    "comm": _COMM,
    "optim": _COMM | {SURFACE},
    "engine": _COMM,
    "torch": _FRAMEWORK | {"engine"},
    "horovod": {"settings", "torch", "cli"},
    "autoload": {"torch"},
    SURFACE: _COMM | {"topologies", "optim"},
    "__main__": {"cli"},
    "cli": _FRAMEWORK | {"topologies", "bench"},
    "bench": _FRAMEWORK | {"topologies", "cli"},
}
"""Part of the package -> the other parts that it may import. A new folder needs a row."""
PLAIN = {"errors", "checks", "dtypes", "settings", "schedule", "topologies"}
"""Parts that may import nothing but the standard library at module level."""

INCLUDES: list[set[str]] = [
    {"base"},
    {"dtype", "schedule"},
    {"executor", "rail", "window"},
    {"engine"},
    {"bindings"},
]
"""Folders of csrc/ by level, lowest first."""

_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"/]+)/')


def check(root: Path) -> list[str]:
    """Every violation under `root`, as `file:line: what is wrong`."""
    return [*_check_python(root), *_check_cpp(root)]


# -- Python ------------------------------------------------------------------------------------------------


def _check_python(root: Path) -> Iterator[str]:
    for file in sorted([*(root / "pycollective").rglob("*.py"), *(root / "bench").rglob("*.py")]):
        module = file.relative_to(root).with_suffix("").parts
        if module[0] == "bench":
            module = ("pycollective", *module)
        yield from _check_file(file.relative_to(root), file.read_text(), module, root / "pycollective")


def _check_file(name: Path, text: str, module: tuple[str, ...], package: Path) -> Iterator[str]:
    part = module[1]
    if part not in IMPORTS:
        yield f"{name}:1: {part!r} has no row in the table of tools/layers.py"
        return
    tree = ast.parse(text)
    at_top = set(_module_level(tree))
    for node in ast.walk(tree):
        for target in _targets(node, module, package):
            line = getattr(node, "lineno", 0)
            if target[0] == "pycollective":
                wanted = target[1] if len(target) > 1 else SURFACE
                if wanted != part and wanted not in IMPORTS[part]:
                    yield f"{name}:{line}: {part} must not import {wanted}"
            elif part in PLAIN and node in at_top and target[0] not in sys.stdlib_module_names:
                yield f"{name}:{line}: {part} must not import {target[0]} at module level"


def _module_level(tree: ast.AST) -> Iterator[ast.AST]:
    """What runs at import: not the bodies of functions, nor what only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from (inner for other in node.orelse for inner in [other, *_module_level(other)])
            continue
        yield node
        yield from _module_level(node)


def _targets(node: ast.AST, module: tuple[str, ...], package: Path) -> Iterator[tuple[str, ...]]:
    """The modules that an import statement names, as absolute dotted paths."""
    if isinstance(node, ast.Import):
        yield from (_absolute(alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = _absolute(node.module) if node.module else ()
        if node.level:
            base = module[: len(module) - node.level] + (tuple(node.module.split(".")) if node.module else ())
        if base == ("pycollective",):  # a folder or file of the package, or a name of its front door
            yield from ((*base, a.name) if _is_part(package, a.name) else base for a in node.names)
        else:
            yield base


def _absolute(name: str) -> tuple[str, ...]:
    parts = tuple(name.split("."))
    return ("pycollective", *parts) if parts[0] == "bench" else parts


def _is_part(package: Path, name: str) -> bool:
    known = set().union(IMPORTS, *IMPORTS.values())
    return name in known or (package / name).is_dir() or (package / f"{name}.py").is_file()


# -- C++ ---------------------------------------------------------------------------------------------------


def _check_cpp(root: Path) -> Iterator[str]:
    level = {folder: i for i, folders in enumerate(INCLUDES) for folder in folders}
    edges: dict[str, dict[str, str]] = {}
    for file in sorted((root / "csrc").rglob("*")):
        if file.suffix not in {".h", ".hpp", ".cuh", ".cpp", ".cu", ".inc"}:
            continue
        folder = file.relative_to(root / "csrc").parts[0]
        if folder not in level:
            yield f"{file.relative_to(root)}:1: {folder!r} has no level in tools/layers.py"
            continue
        for number, line in enumerate(file.read_text().splitlines(), 1):
            found = _INCLUDE.match(line)
            if not found or found[1] == folder or not (root / "csrc" / found[1]).is_dir():
                continue
            where = f"{file.relative_to(root)}:{number}"
            if level.get(found[1], len(level)) > level[folder]:
                yield f"{where}: {folder} must not include {found[1]}"
            edges.setdefault(folder, {}).setdefault(found[1], where)
    yield from _circles(edges)


def _circles(edges: dict[str, dict[str, str]]) -> Iterator[str]:
    for one in sorted(edges):
        for other, where in sorted(edges[one].items()):
            if one < other and one in _reachable(other, edges):
                yield f"{where}: {one} and {other} include each other"


def _reachable(start: str, edges: dict[str, dict[str, str]]) -> set[str]:
    seen: set[str] = set()
    todo = [start]
    while todo:
        for following in edges.get(todo.pop(), {}):
            if following not in seen:
                seen.add(following)
                todo.append(following)
    return seen


if __name__ == "__main__":
    problems = check(Path(__file__).resolve().parent.parent)
    print("\n".join(problems) or "imports and includes run downward")
    sys.exit(bool(problems))
