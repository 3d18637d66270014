"""What the tests of the course's labs share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1] / "examples" / "course"
GIVEN = os.environ.get("COURSE", "")
"""1, or the folder with the results of `make course ARGS=--quick`, whose labs are not run again."""
long = pytest.mark.skipif(not GIVEN, reason="takes long: set COURSE=1")


def measured(name, tmp_path, *words, quick=True):
    """What a lab has measured in its --quick form, or in full; its figures exist."""
    if GIVEN not in ("", "1") and quick and not words:
        content = json.loads(Path(GIVEN, f"{name}.json").read_text())
        assert content["quick"] and [path for path in Path(GIVEN).glob(f"{name}*") if path.suffix in (".svg", ".png")]
        return content["measured"]
    command = [sys.executable, HERE / f"{name}.py", *["--quick"] * quick, "--out", tmp_path, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path for path in tmp_path.iterdir() if path.suffix in (".svg", ".png")]
    content = json.loads((tmp_path / f"{name}.json").read_text())
    assert content["conclusion"] in done.stdout
    return content["measured"]
