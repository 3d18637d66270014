"""Other hosts for elastic jobs: other names of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHELL = """#!/bin/sh
# options HOST COMMAND...: as ssh does, but on this machine, which counts as another host
while [ "${1#-}" != "$1" ]; do shift 2; done
export PYCOLLECTIVE_HOST=$1
shift
exec sh -c "$*"
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, with an ssh that takes any name for a host."""
    (tmp_path / "ssh").write_text(SHELL)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
