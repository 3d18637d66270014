"""`import pycollective` is light: it defines names and pulls in nothing that a user did not ask for."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile

HEAVY = [
    "numpy",
    "ml_dtypes",
    "mpi4py",
    "matplotlib",
    "numba",
    "rich",
    "typer",
    "sklearn",
    "scipy",
    "torch",
    "tensorflow",
    "keras",
    "jax",
    "mxnet",
]


def heavy_in(code: str) -> set[str]:
    """Which of HEAVY a fresh interpreter has loaded after `code`."""
    script = f"""
import sys, json
{code}
print(json.dumps(sorted(sys.modules)))
"""
    with tempfile.TemporaryDirectory() as elsewhere:  # not the source tree
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in json.loads(done.stdout)} & set(HEAVY)


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


def test_what_frameworks_share_of_horovod_needs_none_of_them() -> None:
    modules = ("arguments", "basics", "built", "handles", "horovod_basics", "objects", "operations", "elastic.running")
    code = "import " + ", ".join(f"pycollective.hvd.{name}" for name in modules)
    assert not heavy_in(code) & {"torch", "tensorflow", "keras", "jax", "mxnet"}
