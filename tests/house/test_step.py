"""tools/step.py: what is shown of a Makefile step, and what is reported when one fails."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import pytest

import step


def run(code: str, label: str = "a step") -> int:
    return step.run(label, [sys.executable, "-c", code])


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_line_for_each_compiled_file_and_package(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    printed = [
        "[1/3] Building CXX object CMakeFiles/pc_core.dir/csrc/dtype/kernels_base.cpp.o",
        "  [2/3] Building CXX object CMakeFiles/_core.dir/Unity/unity_0_cxx.cxx.o",
        "Collecting numpy>=1.24",
        "  Downloading numpy-2.4.0-cp311-cp311-linux_x86_64.whl (16.9 MB)",
        "Installing collected packages: numpy, rich",
        "neither pip nor ninja",
    ]
    assert run(f"print({chr(10).join(printed)!r})") == 0
    shown = [re.sub(r"^ *\d+ s  ", "", line) for line in capfd.readouterr().out.splitlines()]
    assert shown == [
        "a step",
        "a step: 1 of 3, csrc/dtype/kernels_base.cpp",
        "a step: 2 of 3, Unity/unity_0_cxx",
        "a step: downloading numpy (16.9 MB)",
        "a step: unpacking numpy, rich",
    ]
    assert (place / "build/log/a-step.log").read_text().splitlines() == printed


def test_progress_is_reported_when_silent(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "QUIET_SECONDS", 0.3)
    assert run("import time; print('[1/9] Linking CXX lib.a', flush=True); time.sleep(1.5)") == 0
    waiting = [line for line in capfd.readouterr().out.splitlines() if "so far" in line]
    known = [*itertools.dropwhile(lambda line: "a step: working" in line, waiting)]  # until Python has started
    assert len(known) >= 2 and all("a step: 1 of 9" in line for line in known), waiting


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("pycollective: no working C++ compiler was found: install one", "C++ compiler"),
        ("pycollective: Python's header files were not found: install them", "python3-dev"),
        ("Failed to establish: NewConnectionError: Temporary failure in name resolution", "network"),
        ("The virtual environment was not created: ensurepip is not available.", "python3-venv"),
        ("something that nobody has seen before", "all of its output is in build/log/a-step.log"),
    ],
)
def test_a_failure_names_its_cause(output: str, advice: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(f"print({output!r}); raise SystemExit(3)") == 1
    lines = capfd.readouterr().err.splitlines()
    assert output in lines and lines[-1].startswith("a step failed: ") and advice in lines[-1], lines


def test_a_command_that_cannot_be_started(capfd: pytest.CaptureFixture[str]) -> None:
    assert step.run("a step", ["./not-here"]) == 1
    assert "not-here" in capfd.readouterr().err
