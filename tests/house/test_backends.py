"""No code checks a backend's class: what callers need to know is part of its interface."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "pycollective"
BACKENDS = {"HostTeam", "HostsTeam", "DeviceTeam", "VirtualTeam", "RailTeam", "NcclTeam", "StagedCalls", "GpuSide"}
BACKENDS |= {"Team"}


def questions(source: str) -> list[int]:
    """The lines that call isinstance or issubclass on a backend."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            asked = {getattr(part, "attr", getattr(part, "id", "")) for part in ast.walk(node.args[1])}
            found += [node.lineno] if asked & BACKENDS else []
    return found


def test_no_backend_type_is_checked() -> None:
    assert questions("if isinstance(comm.backend, (HostsTeam, _core.Team)):\n    pass") == [1]
    assert questions("isinstance(x, np.ndarray)") == []
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 100
    assert {str(f.relative_to(PACKAGE)): lines for f in files if (lines := questions(f.read_text()))} == {}
