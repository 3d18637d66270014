"""Imports point downward without cycles; and the check detects violations."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import grimp

import imports
from launch import run_command

ROOT = Path(__file__).resolve().parents[2]

UPWARD = {  # a file, its content, and what the check reports
    "schedule/bad_absolute.py": ("import pycollective.comm.described", "bad_absolute -> pycollective.comm.described"),
    "schedule/bad_relative.py": ("from ..comm import described", "bad_relative -> pycollective.comm.described"),
    "schedule/bad_lazy.py": ("def f():\n    import pycollective.optim", "schedule.bad_lazy -> pycollective.optim"),
    "schedule/bad_settings.py": ("from .. import settings", "schedule.bad_settings -> pycollective.settings"),
    "schedule/bad_core.py": ("from pycollective import _core", "schedule.bad_core: schedule must not import _core"),
    "topologies/bad.py": ("from pycollective.comm import described", "topologies.bad -> pycollective.comm.described"),
    "topologies/bad_root.py": ("from .. import init", "topologies must not import pycollective its"),
    "comm/bad.py": ("import pycollective", "comm.bad: comm must not import pycollective itself"),
    "comm/bad_bench.py": ("import pycollective.bench.calls", "comm.bad_bench -> pycollective.bench.calls"),
    "comm/bad_topology.py": ("from ..topologies import ring", "comm.bad_topology -> pycollective.topologies.ring"),
    "engine/bad.py": ("import pycollective.optim.sgd", "engine.bad -> pycollective.optim.sgd"),
    "optim/bad.py": ("from pycollective.hvd import handles", "optim.bad -> pycollective.hvd.handles"),
    "torch/bad.py": ("from ..topologies import ring", "torch.bad -> pycollective.topologies.ring"),
    "cli/bad.py": ("import pycollective.engine", "cli.bad -> pycollective.engine"),
    "horovod/bad.py": ("from ..comm.bootstrap import nodes", "horovod.bad -> pycollective.comm.bootstrap.nodes"),
    "errors.py": ("import pycollective.schedule", "errors -> pycollective.schedule"),
    "settings.py": ("from . import notebook", "settings -> pycollective.notebook"),
    "attic/__init__.py": ("", "attic"),
    "optim/bad_circle.py": ("def f():\n    from . import bad_back", "bad_circle:2 imports pycollective.optim.bad_b"),
    "optim/bad_back.py": ("from . import bad_circle", "optim.bad_back:1 imports pycollective.optim.bad_circle"),
    "optim/bad_annotation.py": (
        "import typing\nif typing.TYPE_CHECKING:\n    from . import bad_other",
        "bad_annotation:3 imports pycollective.optim.bad_other",
    ),
    "optim/bad_other.py": ("from . import bad_annotation", "bad_other:1 imports pycollective.optim.bad_annotation"),
}
DOWNWARD = {
    "comm/good.py": "from pycollective.schedule import compile\nimport numpy\nfrom .. import _core, errors",
    "optim/good.py": "from pycollective import init",
    "torch/good.py": "import torch\nfrom pycollective.optim import sgd",
    "bench/good.py": "import pycollective\nfrom .workload import cases",
}


def run(*words: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    return run_command(sys.executable, ROOT / "tools/checks/imports.py", *words, code=code)


def test_this_repository_keeps_its_layers() -> None:
    assert int(run().stdout.split("Analyzed ")[1].split()[0]) > 200  # files: an empty report proves nothing


def test_upward_imports_and_circles_are_refused(tmp_path: Path) -> None:
    for folder in ("pycollective", "bench"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.so", "bench", "__pycache__"))
    for name, text in [*((name, text) for name, (text, _) in UPWARD.items()), *DOWNWARD.items()]:
        file = tmp_path / ("" if name.startswith("bench") else "pycollective") / name
        file.parent.mkdir(exist_ok=True)
        file.write_text((file.read_text() if file.exists() else "") + "\n" * (not name.startswith("optim")) + text)
    done = run(tmp_path, code=1)
    for text, problem in UPWARD.values():
        assert problem in done.stdout, text
    assert "good" not in done.stdout


def graph_of(*edges: str) -> grimp.ImportGraph:
    graph = grimp.ImportGraph()
    for importer, imported in map(tuple, edges):
        graph.add_import(importer=importer, imported=imported, line_number=7, line_contents="import")
    return graph


def test_a_circle_has_every_file_that_is_on_one_and_no_other() -> None:
    assert imports.find_circles(graph_of("ab", "bc", "ca", "cd", "de", "ed", "xa", "ey")) == [tuple("abc"), tuple("de")]
    assert imports.find_circles(graph_of("ab", "bc", "ac")) == []


def test_a_circle_is_reported_with_its_imports() -> None:
    found = list(imports.check_circles(graph_of("ab", "bc", "ca", "cd")))
    assert found == ["import cycle of 3 files:", "  a:7 imports b", "  b:7 imports c", "  c:7 imports a"]


def test_the_language_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    """An interpreter without installed packages imports every module of these parts."""
    plain = ["checks", "errors", "notebook", "settings", "schedule", "topologies"]
    (tmp_path / "pycollective").symlink_to(ROOT / "pycollective")
    code = (
        f"import sys, importlib, pkgutil; sys.path.append({str(tmp_path)!r})\n"
        f"for part in {plain}:\n"
        "    module = importlib.import_module(f'pycollective.{part}')\n"
        "    for each in pkgutil.walk_packages(getattr(module, '__path__', ()), f'{module.__name__}.'):\n"
        "        print(importlib.import_module(each.name).__name__)\n"
    )
    assert len(run_command(sys.executable, "-I", "-S", "-c", code).stdout.split()) > 20
