"""`import pycollective` is light: it defines names and pulls in nothing that a user did not ask for."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile

HEAVY = ["numpy", "ml_dtypes", "mpi4py", "matplotlib", "numba", "rich", "typer", "torch", "sklearn", "scipy"]


def imported(code: str) -> dict[str, object]:
    """What a fresh interpreter has loaded after `code`, and how long that took."""
    script = f"""
import time, sys, json
start = time.perf_counter()
{code}
print(json.dumps({{"seconds": time.perf_counter() - start, "modules": sorted(sys.modules)}}))
"""
    with tempfile.TemporaryDirectory() as elsewhere:  # not the source tree
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def heavy_in(code: str) -> set[str]:
    modules = imported(code)["modules"]
    assert isinstance(modules, list)
    return {name.partition(".")[0] for name in modules} & set(HEAVY)


def test_the_probe_would_see_numpy() -> None:
    assert heavy_in("import numpy") == {"numpy"}


def test_import_loads_nothing_heavy() -> None:
    assert heavy_in("import pycollective") == set()


def test_the_compiler_needs_no_numpy() -> None:
    assert heavy_in("import pycollective.schedule; pycollective.schedule.names()") == set()


def test_bootstrap_and_launcher_need_nothing_heavy() -> None:
    assert (
        heavy_in(
            "import pycollective.comm.bootstrap.detection, pycollective.comm.bootstrap.nodes, pycollective.cli.run"
        )
        == set()
    )


def test_import_is_quick() -> None:
    """Under 100 ms; the best of five, because other tests' leftovers may hold the cores."""
    assert min(float(str(imported("import pycollective")["seconds"])) for _ in range(5)) < 0.1
