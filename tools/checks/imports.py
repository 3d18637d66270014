"""Rejects upward imports and import cycles between the Python files: names each and exits with 1.

python tools/checks/imports.py          # checks pycollective/ and bench/, which is pycollective.bench when installed
python tools/checks/imports.py FOLDER   # the sources of another folder

Layers are import-linter's contracts in pyproject.toml. What these cannot express is checked here: cycles between
single files, and imports of the package's top level and its compiled modules. Imports inside functions and under
TYPE_CHECKING count.
"""

from __future__ import annotations

import ast
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grimp
from importlinter.cli import lint_imports

HOME = Path(__file__).resolve().parents[2]
ROOT = "pycollective"
COMPILED = {"_core", "_cuda"}
"""Modules that are not Python files, so that importing one looks like importing the package itself."""
MAY_IMPORT_ROOT = {"bench", "cli", "jax", "optim", "tensorflow", "torch"}
MAY_IMPORT_COMPILED = MAY_IMPORT_ROOT | {"comm", "engine"}

Circle = tuple[str, ...]
"""The modules of a strongly connected component, sorted."""


def lay_out(home: Path, folder: Path) -> None:
    """Fill `folder` with links to the sources under `home` in the layout of the installed package."""
    package = folder / ROOT
    package.mkdir()
    for entry in [*(home / ROOT).iterdir(), home / "bench"]:
        if entry.exists() and not (package / entry.name).exists():
            (package / entry.name).symlink_to(entry)


def read_graph() -> grimp.ImportGraph:
    """The import graph of the files."""
    graph = grimp.build_graph(ROOT, cache_dir=None)
    for importer in graph.find_modules_that_directly_import(ROOT):
        if not names_of_root(graph, importer) - COMPILED:
            graph.remove_import(importer=importer, imported=ROOT)
    return graph


def names_of_root(graph: grimp.ImportGraph, importer: str) -> set[str]:
    """Names that a module imports from the package itself and that are not files; "" for the package."""
    path = Path(*importer.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    lines = {details["line_number"] for details in graph.get_import_details(importer=importer, imported=ROOT)}
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.lineno in lines:
            names |= {alias.name for alias in node.names if f"{ROOT}.{alias.name}" not in graph.modules}
        elif isinstance(node, ast.Import) and node.lineno in lines:
            names |= {alias.name.partition(".")[2] for alias in node.names if alias.name.split(".")[0] == ROOT}
    return names


def check_root() -> Iterator[str]:
    """Every import of the top level or of a compiled module by a part that must not use it."""
    graph = grimp.build_graph(ROOT, cache_dir=None)
    for importer in sorted(graph.find_modules_that_directly_import(ROOT)):
        part = importer.split(".")[1]
        names = names_of_root(graph, importer)
        if names & COMPILED and part not in MAY_IMPORT_COMPILED:
            yield f"{importer}: {part} must not import {min(names & COMPILED)}"
        if names - COMPILED and part not in MAY_IMPORT_ROOT:
            yield f"{importer}: {part} must not import {ROOT} itself"


def find_circles(graph: grimp.ImportGraph) -> list[Circle]:
    """The strongly connected components with more than one file."""
    found = set()
    for module in graph.modules:
        others = graph.find_upstream_modules(module) & graph.find_downstream_modules(module)
        if others:
            found.add(tuple(sorted({module, *others})))
    return sorted(found)


def check_circles(graph: grimp.ImportGraph) -> Iterator[str]:
    """Every cycle, and each import between its files, with its line."""
    for circle in find_circles(graph):
        yield f"import cycle of {len(circle)} files:"
        for importer in circle:
            for imported in sorted(graph.find_modules_directly_imported_by(importer) & set(circle)):
                for details in graph.get_import_details(importer=importer, imported=imported):
                    yield f"  {importer}:{details['line_number']} imports {imported}"


def main(home: Path) -> int:
    """The exit status for the sources under `home`."""
    with tempfile.TemporaryDirectory() as folder:
        lay_out(home, Path(folder))
        os.chdir(folder)  # the first folder that import-linter searches, but for the finder of an editable install
        sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
        status = lint_imports(str(HOME / "pyproject.toml"), no_cache=True, no_logo=True)
        problems = [*check_root(), *check_circles(read_graph())]
        os.chdir(home)
    print("\n".join(problems) or "no import cycle")
    return int(status or bool(problems))


if __name__ == "__main__":
    sys.exit(main(Path(*sys.argv[1:2]).resolve() if sys.argv[1:] else HOME))
