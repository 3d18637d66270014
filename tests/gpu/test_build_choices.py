"""Build targets of the GPU side: cmake/cuda_choices.cmake and cmake/gpus.cmake, run as scripts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gpu import emulation
from launch import run_command

CMAKE = emulation.ROOT / "cmake"
KNOWN = "75;80;86;90;100"
"""Architectures that an nvcc supports."""

CMAKE_TOOL = shutil.which("cmake", path=emulation._path())

pytestmark = pytest.mark.skipif(not CMAKE_TOOL, reason="no cmake")


def output(tmp_path: Path, text: str, *switches: str, code: int = 0, **variables: str) -> str:
    """What a script writes that ends with this code."""
    (tmp_path / "script.cmake").write_text(text)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PC_CUDA")}
    words = [str(CMAKE_TOOL), *switches, "-P", tmp_path / "script.cmake"]
    return run_command(*words, code=code, env={**clean, **variables}).stderr.strip()


@pytest.mark.parametrize(
    ("choice", "present", "known", "expected"),
    [
        ("native", "", KNOWN, "90"),
        ("native", "90", KNOWN, "90-real"),
        ("native", "80;90", KNOWN, "80-real;90-real"),
        ("native", "120", KNOWN, "100-virtual"),
        ("native", "60", KNOWN, "90"),
        ("wheel", "", KNOWN, "80-real;90-real;100"),
        ("wheel", "90", "75;80;86;90", "80-real;90"),
        ("86-real;90", "80", KNOWN, "86-real;90"),
    ],
)
def test_architectures(choice: str, present: str, known: str, expected: str, tmp_path: Path) -> None:
    text = f"""
        include({CMAKE}/gpus.cmake)
        pc_cuda_architectures("{choice}" "{present}" "{known}" found)
        message("${{found}}")
    """
    assert output(tmp_path, text) == expected


CHOICES = f"""
    include({CMAKE}/cuda_choices.cmake)
    message("${{PC_CUDA}} ${{PC_CUDA_ARCHITECTURES}}")
"""


@pytest.mark.parametrize(
    ("switches", "variables", "expected"),
    [
        ([], {}, "AUTO native"),
        ([], {"PC_CUDA": "off", "PC_CUDA_ARCHITECTURES": "80-real,90"}, "OFF 80-real;90"),
        ([], {"PC_CUDA": "0", "PC_CUDA_ARCHITECTURES": ""}, "OFF native"),
        (["-DPC_CUDA=ON", "-DPC_CUDA_ARCHITECTURES=wheel"], {"PC_CUDA": "OFF"}, "ON wheel"),
    ],
)
def test_the_command_line_goes_before_the_environment(
    switches: list[str], variables: dict[str, str], expected: str, tmp_path: Path
) -> None:
    assert output(tmp_path, CHOICES, *switches, **variables) == expected


def test_another_word_is_refused(tmp_path: Path) -> None:
    assert 'PC_CUDA is ON, OFF or AUTO, not "PERHAPS"' in output(tmp_path, CHOICES, code=1, PC_CUDA="perhaps")


@pytest.mark.parametrize("answer", ["9.0\n9.0\n12.0\n", ""])
def test_the_gpus_that_are_present(answer: str, tmp_path: Path) -> None:
    """With a program in place of nvidia-smi; without an answer it fails, as it does without a driver."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{answer}'\nexit {int(not answer)}\n")
    program.chmod(0o755)
    text = f"""
        set(PC_NVIDIA_SMI {program})
        include({CMAKE}/gpus.cmake)
        pc_gpus_present(found)
        message("[${{found}}]")
    """
    assert output(tmp_path, text) == ("[90;120]" if answer else "[]")
