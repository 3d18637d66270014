"""The kernels' machine code: the installed one keeps the rules of checks/sass.py, each broken build breaks one."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path

import pytest

import sass
from launch import run_command

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {"pc_collectives.h": "schedule/collectives.py", "pc_dtypes.h": "dtypes.py", "pc_settings.h": "settings.py"}
"""The headers that the build generates from the package's tables."""
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
ONE_KERNEL = """
#include "executor/cuda/kernels/kernels_impl.h"
pc::cuda::Kernels one() { return pc::cuda::kernels_with<pc::cuda::Elements<float, pc::cuda::Fixed<pc::Sum>>>(); }
"""

needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc")


def compiled(folder: Path, *switches: str) -> list[sass.Kernel]:
    """The executor and the low-latency kernel of float32 sums for one architecture, with the project's flags."""
    flags = re.search(r"COMPILE_LANGUAGE:CUDA>:(-std[^>]*)>", (ROOT / "cmake" / "cuda.cmake").read_text())
    assert flags, "cmake/cuda.cmake passes nvcc's flags differently"
    source, target = folder / "one.cu", folder / "one.cubin"
    source.write_text(ONE_KERNEL)
    assert NVCC is not None
    for header, table in GENERATED.items():
        run_command(sys.executable, "-I", ROOT / "pycollective" / table, folder / header)
    options = [*flags[1].split(), f"-I{ROOT / 'csrc'}", f"-I{folder}", "-arch=sm_90", "-Werror=all-warnings"]
    run_command(NVCC, *options, *switches, "-cubin", "-o", target, source, timeout=600)
    return sass.kernels(target)


def problems(found: list[sass.Kernel]) -> list[str]:
    names = [re.search("run_schedule|run_low_latency", kernel.name) for kernel in found]
    assert sorted(name[0] for name in names if name) == ["run_low_latency", "run_schedule"]
    return [problem for kernel in found for problem in sass.problems(kernel)]


@needs_nvcc
def test_one_kernel_as_it_is(tmp_path: Path) -> None:
    found = compiled(tmp_path)
    assert problems(found) == []
    assert all(16 < kernel.registers <= 128 for kernel in found), "the resource report was not read"


@needs_nvcc
@pytest.mark.parametrize(
    ("switch", "expected"),
    [("CONST_RESTRICT", "not coherent"), ("RELAXED_FLAG", "not an acquire"), ("NARROW", "data path is narrow")],
)
def test_broken_on_purpose(tmp_path: Path, switch: str, expected: str) -> None:
    """Window memory read as constant, a flag read without acquire, data moved eight bytes at a time."""
    assert any(expected in problem for problem in problems(compiled(tmp_path, f"-DPC_TEST_{switch}")))


ACQUIRE = ("LDG.E.64.STRONG.SYS", "CCTL.IVALL")
RELEASE = ("MEMBAR.ALL.SYS", "ERRBAR", "STG.E.64.STRONG.SYS")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ((*ACQUIRE, *RELEASE), ""),
        ((*ACQUIRE, "BRA", *RELEASE), ""),
        ((*ACQUIRE, "BRA", "STG.E.64.STRONG.SYS"), "not a release"),
        ((*ACQUIRE, *RELEASE, "STG.E.64.STRONG.SYS"), "1 of 2 stores"),
        (("LDG.E.64.STRONG.SYS", *ACQUIRE, *RELEASE), "1 of 2 loads"),
        (("LDG.E.64.STRONG.SYS", "BAR.SYNC", "CCTL.IVALL", *RELEASE), "not an acquire"),
        ((*ACQUIRE, "MEMBAR.ALL.GPU", "STG.E.64.STRONG.SYS"), "not a release"),
        ((*ACQUIRE, *RELEASE, "LDG.E.STRONG.GPU"), "not of system scope"),
        ((*ACQUIRE, *RELEASE, "LDG.E.64.STRONG.GPU"), "1 of 1 loads"),
        ((*ACQUIRE, *RELEASE, "LDG.E.64.STRONG.GPU", "CCTL.IVALL"), ""),
        ((*ACQUIRE, *RELEASE, "MEMBAR.ALL.GPU", "STG.E.64.STRONG.GPU"), ""),
        ((*ACQUIRE, *RELEASE, "STG.E.64.STRONG.GPU"), "1 of 1 stores"),
        (ACQUIRE, "0 stores of flags"),
    ],
)
@pytest.mark.parametrize("stack", [0, 8])
def test_the_rules_for_flags_and_spills(code: tuple[str, ...], expected: str, stack: int) -> None:
    """The kernel is an executor of sums with a sound data path."""
    wide = ["LD.E.128"] * sass.AHEAD + ["ST.E.128"] * sass.AHEAD
    found = list(sass.problems(sass.Kernel("sm_90", "run_schedule<Sum>", [*wide, *code], stack=stack)))
    assert any("8 bytes of stack" in problem for problem in found) == (stack > 0)
    assert any(expected in problem for problem in found) if expected else len(found) == (stack > 0)


def test_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    """Every kernel of every architecture in the installed extension."""
    if importlib.util.find_spec("pycollective._cuda") is None:
        pytest.skip("pycollective._cuda was not built here")
    status = sass.main(["--quiet"])
    output = capsys.readouterr().out
    with capsys.disabled():  # the report belongs in the log of every run
        print(f"\n{output}")
    assert status == 0, output
