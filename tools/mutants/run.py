"""Runs the tests on seeded faults: each mutant must be killed, by a test that fails or does not end.

python tools/mutants/run.py [NAME...]    names: parts of mutants' names; by default all

Mutants of Python replace text in a copy of the installed package. Those in C++ are compiled into one build: each place
has both texts, and the variable PC_MUTANT chooses. The tests of a mutant run with `-x`; the one that fails must pass
without the mutant.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "mutants"
TREE, SITE = BUILD / "tree", BUILD / "site"
COMPILED = ("csrc", "cmake", "CMakeLists.txt", "pyproject.toml", "pycollective")
DECLARED = "\nnamespace pc {\nextern const int chosen_mutant;\n}\n"
DEFINED = """
namespace pc {
extern const int chosen_mutant = std::getenv("PC_MUTANT") == nullptr ? 0 : std::atoi(std::getenv("PC_MUTANT"));
}
"""
SECONDS = 600
"""After which the tests of a mutant count as hanging."""


def in_cpp(mutant: Mutant) -> bool:
    return mutant.path.startswith("csrc/")


def replaced(text: str, mutant: Mutant, new: str) -> str:
    if text.count(mutant.old) != 1:
        sys.exit(f"{mutant.name}: its text occurs {text.count(mutant.old)} times in {mutant.path}")
    return text.replace(mutant.old, new)


def switched(number: int, mutant: Mutant) -> str:
    """Both texts, of which PC_MUTANT chooses."""
    if mutant.old.endswith((";", "}")):
        return f"if (::pc::chosen_mutant == {number}) {{ {mutant.new} }} else {{ {mutant.old} }}"
    return f"(::pc::chosen_mutant == {number} ? ({mutant.new}) : ({mutant.old}))"


def copy_tree() -> None:
    """The sources, with all mutants in C++; files that have not changed are not written again."""
    listed = subprocess.run(["git", "ls-files", *COMPILED], cwd=ROOT, capture_output=True, text=True, check=True)
    texts = {path: (ROOT / path).read_text() for path in listed.stdout.splitlines() if (ROOT / path).exists()}
    for number, mutant in enumerate(MUTANTS, 1):
        if in_cpp(mutant):
            texts[mutant.path] = replaced(texts[mutant.path], mutant, switched(number, mutant))
    for path in {mutant.path for mutant in MUTANTS if in_cpp(mutant)}:
        texts[path] = DECLARED + texts[path]
    texts["csrc/base/environment.cpp"] += DEFINED
    for path, text in texts.items():
        there = TREE / path
        if not there.exists() or there.read_text() != text:
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_text(text)


def run(*words: object) -> None:
    alone = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}  # not a part of make's jobs
    if subprocess.run([str(word) for word in words], cwd=ROOT, env=alone, check=False).returncode != 0:
        sys.exit(f"failed: {' '.join(map(str, words))}")


def build() -> None:
    import pybind11

    copy_tree()
    scripts, python = Path(sysconfig.get_path("scripts")), sys.executable
    run(scripts / "cmake", "-S", TREE, "-B", BUILD / "cmake", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_MAKE_PROGRAM={scripts / 'ninja'}", "-DPC_BUILD_PYTHON=ON", "-DPC_CUDA=OFF",
        f"-DPython_EXECUTABLE={python}", f"-DPython3_EXECUTABLE={python}",
        f"-Dpybind11_DIR={pybind11.get_cmake_dir()}")  # fmt: skip
    run(scripts / "cmake", "--build", BUILD / "cmake", "--target", "_core")


def copy_package() -> None:
    """The installed package, with the extension of all mutants."""
    import pycollective

    shutil.rmtree(SITE, ignore_errors=True)
    unwanted = shutil.ignore_patterns("_core*.so", "_cuda*.so", "__pycache__")
    shutil.copytree(Path(pycollective.__path__[0]), SITE / "pycollective", ignore=unwanted)
    for extension in (BUILD / "cmake").glob("_core*.so"):
        shutil.copy(extension, SITE / "pycollective")


def tested(tests: tuple[str, ...], number: int = 0) -> tuple[str, str]:
    """The outcome ("passed", "killed", "hangs") and what failed first."""
    scripts = sysconfig.get_path("scripts")
    command = [f"{scripts}/pytest", "-x", "-q", "-p", "no:cacheprovider", "-n", os.environ.get("JOBS", "2"),
               "--dist", "loadfile", "--timeout", "60", *tests]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(SITE), "PYTHONDONTWRITEBYTECODE": "1", "PC_MUTANT": str(number),
                   "PATH": os.pathsep.join([scripts, os.environ.get("PATH", "")])}  # fmt: skip
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        return "hangs", ""
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if process.returncode == 0:
        return "passed", ""
    return "killed", failed[0].split(" - ")[0] if failed else output.strip().splitlines()[-1]


def judge(number: int, mutant: Mutant) -> bool:
    """Run a mutant's tests, print the outcome; returns whether it was killed."""
    path = SITE / mutant.path
    before = None if in_cpp(mutant) else path.read_text()
    started = time.monotonic()
    try:
        if before is not None:
            path.write_text(replaced(before, mutant, mutant.new))
        outcome, by = tested(mutant.tests, number)
    finally:
        if before is not None:
            path.write_text(before)
    if "::" in by and tested((by.split(maxsplit=1)[1],))[0] != "passed":
        outcome = "FLAWED"  # the test fails without it, too
    seconds = time.monotonic() - started
    print(f"{'SURVIVED' if outcome == 'passed' else outcome:8} {seconds:5.0f} s  {mutant.name}: {by}", flush=True)
    return outcome in ("killed", "hangs")


def main() -> int:
    chosen = [
        (number, mutant)
        for number, mutant in enumerate(MUTANTS, 1)
        if not sys.argv[1:] or any(name in mutant.name for name in sys.argv[1:])
    ]
    build()
    copy_package()
    killed = [judge(number, mutant) for number, mutant in chosen]
    print(f"{sum(killed)} of {len(killed)} mutants were killed")
    return not all(killed)


if __name__ == "__main__":
    sys.exit(main())
