"""What the tests of the examples and of the course's labs share."""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch import find_mpirun, run_command

EXAMPLES = Path(__file__).parents[1] / "examples"
HERE = EXAMPLES / "course"
GIVEN = os.environ.get("COURSE", "")
"""1, or the folder with the results of `make course ARGS=--quick`, whose labs are not run again."""
needs_mpi = [pytest.mark.mpi, pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun")]
long = pytest.mark.skipif(not GIVEN, reason="takes long: set COURSE=1")


def measured(name, tmp_path, *words, quick=True):
    """What a lab has measured in its --quick form, or in full; its figures exist."""
    if GIVEN not in ("", "1") and quick and not words:
        content = json.loads(Path(GIVEN, f"{name}.json").read_text())
        assert content["quick"] and [path for path in Path(GIVEN).glob(f"{name}*") if path.suffix in (".svg", ".png")]
        return content["measured"]
    command = [sys.executable, HERE / f"{name}.py", *["--quick"] * quick, "--out", tmp_path, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    done = run_command(*command, timeout=280, cwd=tmp_path, env=environment)
    assert [path for path in tmp_path.iterdir() if path.suffix in (".svg", ".png")]
    content = json.loads((tmp_path / f"{name}.json").read_text())
    assert content["conclusion"] in done.stdout
    return content["measured"]


def trained(ran):
    """(accuracy, digest) that rank 0 of a run of an example has printed; the others have printed nothing."""
    assert ran.check().outputs[1:] == [""] * (len(ran) - 1)
    found = re.fullmatch(r"accuracy (\d\.\d{4})  digest ([0-9a-f]{16})  (backend \S+|ranks (\d))\n", ran[0])
    assert found and found[4] in (None, str(len(ran))), ran.report()
    return float(found[1]), found[2]


def example(name):
    """The functions of an example."""
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / f"{name}.py")))
