"""Includes point downward; and the check detects violations."""

from __future__ import annotations

import sys
from pathlib import Path

import includes
from launch import run_command

ROOT = Path(__file__).resolve().parents[2]


def write(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def problems_of(root: Path, name: str, text: str) -> list[str]:
    for folder in ("base", "window"):
        (root / "csrc" / folder).mkdir(parents=True, exist_ok=True)
    write(root, name, text)
    return includes.check(root)


def test_this_repository_keeps_its_layers() -> None:
    """As the hook runs the script; an empty report must not mean that nothing was read."""
    run_command(sys.executable, ROOT / "tools/checks/includes.py")
    assert len(list((ROOT / "csrc").rglob("*.h"))) > 5


def test_downward_includes_are_accepted(tmp_path: Path) -> None:
    text = '#include "base/status.h"\n#include <vector>\n#include "here.h"'
    assert problems_of(tmp_path, "csrc/window/a.h", text) == []


def test_upward_includes_and_circles_are_refused(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "csrc/base/a.h", '// one\n#  include "window/b.h"') == [
        "csrc/base/a.h:2: base must not include window"
    ]
    write(tmp_path, "csrc/base/a.h", "")
    write(tmp_path, "csrc/window/b.h", '#include "executor/c.h"')
    write(tmp_path, "csrc/executor/cpu/c.h", '#include "window/b.h"')
    assert includes.check(tmp_path) == ["csrc/executor/cpu/c.h:1: executor and window include each other"]
    write(tmp_path, "csrc/attic/a.cpp", "")
    assert any("'attic' has no level" in problem for problem in includes.check(tmp_path))


def test_files_of_a_folder_that_include_each_other_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "csrc/base/a.h", '#include "base/b.h"')
    assert problems_of(tmp_path, "csrc/base/b.h", '#include "base/a.h"') == [
        "csrc/base/a.h:1: base/a.h and base/b.h include each other"
    ]
