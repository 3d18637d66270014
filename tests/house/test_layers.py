"""Imports and includes run downward; and the check that says so notices when they do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import layers

ROOT = Path(__file__).resolve().parents[2]


def write(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def problems_of(root: Path, name: str, text: str) -> list[str]:
    for folder in (
        "pycollective/comm",
        "pycollective/schedule",
        "pycollective/optim",
        "csrc/base",
        "csrc/window",
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
    write(root, name, text)
    return layers.check(root)


def test_this_repository_keeps_its_layers() -> None:
    assert layers.check(ROOT) == []


def test_the_check_sees_this_repository() -> None:
    """An empty report must not mean that nothing was read."""
    assert len(list((ROOT / "pycollective").rglob("*.py"))) > 10
    assert len(list((ROOT / "csrc").rglob("*.h"))) > 5


def test_the_script_runs_as_the_hook_runs_it() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "tools/layers.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("pycollective/schedule/a.py", "import pycollective.comm.nodes", "schedule must not import comm"),
        (
            "pycollective/schedule/a.py",
            "from pycollective.comm import nodes",
            "schedule must not import comm",
        ),
        ("pycollective/schedule/a.py", "from pycollective import comm", "schedule must not import comm"),
        ("pycollective/schedule/a.py", "from ..comm import nodes", "schedule must not import comm"),
        ("pycollective/schedule/a.py", "from .. import comm", "schedule must not import comm"),
        (
            "pycollective/schedule/a.py",
            "def f():\n    import pycollective.optim",
            "schedule must not import optim",
        ),
        ("pycollective/schedule/a.py", "import numpy", "schedule must not import numpy at module level"),
        (
            "pycollective/topologies/a.py",
            "from pycollective.comm import x",
            "topologies must not import comm",
        ),
        (
            "pycollective/topologies/a.py",
            "from pycollective import init",
            "topologies must not import __init__",
        ),
        ("pycollective/comm/a.py", "import pycollective", "comm must not import __init__"),
        ("pycollective/comm/a.py", "import bench", "comm must not import bench"),
        ("pycollective/comm/a.py", "import pycollective.cli.run", "comm must not import cli"),
        ("pycollective/optim/a.py", "import pycollective.torch", "optim must not import torch"),
        ("pycollective/errors.py", "import pycollective.schedule", "errors must not import schedule"),
        ("pycollective/unheard/a.py", "", "'unheard' has no row"),
    ],
)
def test_upward_imports_are_refused(tmp_path: Path, name: str, text: str, problem: str) -> None:
    found = problems_of(tmp_path, name, text)
    assert len(found) == 1, found
    assert problem in found[0]
    assert found[0].startswith(name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "pycollective/comm/a.py",
            "from pycollective.schedule import compile\nimport numpy\nfrom .. import errors",
        ),
        ("pycollective/comm/a.py", "from pycollective import _core"),
        ("pycollective/schedule/a.py", "from . import b\nfrom ..errors import Error\nimport ast"),
        ("pycollective/schedule/a.py", "def draw():\n    import matplotlib.pyplot"),
        ("pycollective/schedule/a.py", "import typing\nif typing.TYPE_CHECKING:\n    import numpy"),
        ("pycollective/optim/a.py", "from pycollective import init"),
        ("pycollective/torch/a.py", "import torch\nfrom pycollective.optim import sgd"),
        ("bench/a.py", "import pycollective\nfrom bench import cases"),
        ("csrc/window/a.h", '#include "base/status.h"\n#include <vector>\n#include "here.h"'),
    ],
)
def test_downward_imports_are_let_be(tmp_path: Path, name: str, text: str) -> None:
    assert problems_of(tmp_path, name, text) == []


def test_upward_includes_and_circles_are_refused(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "csrc/base/a.h", '// one\n#  include "window/b.h"') == [
        "csrc/base/a.h:2: base must not include window"
    ]
    write(tmp_path, "csrc/base/a.h", "")
    write(tmp_path, "csrc/window/b.h", '#include "executor/c.h"')
    write(tmp_path, "csrc/executor/cpu/c.h", '#include "window/b.h"')
    assert layers.check(tmp_path) == ["csrc/executor/cpu/c.h:1: executor and window include each other"]
    write(tmp_path, "csrc/attic/a.cpp", "")
    assert any("'attic' has no level" in problem for problem in layers.check(tmp_path))
