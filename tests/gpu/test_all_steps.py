"""bench/gpu/all.sh, without a GPU: the emulated runtime is in the place where the script installs the package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pycollective
from gpu import emulation
from launch import run_command

EMULATED = """
import pathlib, sys
sys.path.append({tests!r})
import gpu.emulation
gpu.emulation.load(pathlib.Path({built!r}))
"""
STEPS = ("tests", "memcheck", "small")


def all_steps(folder: Path, *steps: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run them, one of which fails, in a folder with a copy of the script, with an nvidia-smi that names a GPU."""
    tool = folder / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 9.0\n")
    tool.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}", **env}
    return run_command(folder / "bench/gpu/all.sh", folder / "out", *steps, code=1, env=environment, timeout=300)


def test_nothing_is_measured_if_the_canary_fails(tmp_path: Path) -> None:
    shutil.copytree(emulation.ROOT / "bench" / "gpu", tmp_path / "bench" / "gpu")
    all_steps(tmp_path, "canary", "bits", PYTHON="false")
    first, last = (tmp_path / "out/summary.txt").read_text().splitlines()[-2:]
    assert first.startswith("canary") and "FAILED" in first
    assert last == "the canary failed: nothing else is measured"


@pytest.mark.emulated
def test_steps(built: Path, tmp_path: Path) -> None:
    """Results of every step, also after one that fails: compute-sanitizer is missing here."""
    if shutil.which("compute-sanitizer"):
        pytest.skip("compute-sanitizer is here, which cannot run without a GPU")
    for folder in ("bench", "tests"):
        shutil.copytree(emulation.ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(emulation.ROOT / "pyproject.toml", tmp_path)
    site = tmp_path / "build" / "gpu-site"
    site.mkdir(parents=True)
    (site / "pycollective").symlink_to(Path(pycollective.__file__).parent)
    (site / "sitecustomize.py").write_text(EMULATED.format(tests=str(tmp_path / "tests"), built=str(built)))
    settings = {"BENCH": "--tiny", "TESTS": "-k replayed", "JOBS": "2", "PYCOLLECTIVE_COMMIT": "abc"}
    done = all_steps(tmp_path, *STEPS, PYTHON=sys.executable, **settings)
    out = done.stdout + done.stderr
    summary = dict(line.split(maxsplit=1) for line in (tmp_path / "out/summary.txt").read_text().splitlines())
    assert list(summary) == list(STEPS), out
    assert [name for name, rest in summary.items() if not rest.endswith("ok")] == ["memcheck"], out
    log = (tmp_path / "out/log.txt").read_text()
    assert [line for line in log.splitlines() if line.startswith("===== ")] == [f"===== {name}" for name in STEPS]
    read = json.loads((tmp_path / "out/small.json").read_text())
    assert {row["part"] for row in read["rows"]} == {"small"}
    assert read["provenance"]["commit"] == "abc"
    assert out.count("| bits of direct, float32 |  | identical | - |") == 2, "of the step, and of all files together"
