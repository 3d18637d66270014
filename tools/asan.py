"""Builds the core with the address and undefined-behavior sanitizers and runs the tests that exercise it.

The native tests come first, with leak checks; then the Python tests, on a copy of the installed package whose
extension is the sanitized one, without leak checks: the interpreter itself leaks memory.
Arguments are passed to pytest, instead of the list of tests below.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "asan"
SITE = BUILD / "site"
NATIVE = [f"{name}_test" for name in ("cuda_combine", "unit", "link", "faults", "engine", "executor", "cuda_blocks")]
TESTS = (
    "tests/comm/arguments/test_arguments.py",
    "tests/comm/arguments/test_arrays.py",
    "tests/comm/arguments/test_memory_safety.py",
    "tests/comm/host/test_mismatch.py",
    "tests/comm/test_nonblocking.py",
    "tests/comm/collectives/test_placements.py",
    "tests/comm/test_point_to_point.py",
    "tests/fuzz/test_private_calls.py",
    "tests/comm/hosts/test_virtual_hosts.py",
    "tests/engine/negotiation/test_join.py",
    "tests/engine/negotiation/test_mismatch.py",
    "tests/engine/test_refusals.py",
    "tests/engine/test_works.py",
)
UBSAN = "print_stacktrace=1"


def run(*command: object, **variables: str) -> None:
    """Run a command in the repository; exit if it fails."""
    scripts = sysconfig.get_path("scripts")
    path = os.pathsep.join([scripts, os.environ.get("PATH", "")])
    words = [str(word) for word in command]
    words[0] = shutil.which(words[0], path=path) or words[0]
    code = subprocess.run(words, cwd=ROOT, env={**os.environ, "PATH": path, **variables}, check=False).returncode
    if code != 0:
        sys.exit(f"{' '.join(words)}: exit code {code}")


def runtime(name: str) -> str:
    """The path of one of the compiler's runtime libraries."""
    compiler = os.environ.get("CXX", "c++")
    found = subprocess.run([compiler, f"-print-file-name={name}"], text=True, capture_output=True, check=True)
    path = found.stdout.strip()
    if not Path(path).is_absolute():
        sys.exit(f"{compiler} has no {name}: install its sanitizers (with GCC on Debian, libasan and libubsan)")
    return path


def build() -> None:
    """The native tests and the extension."""
    import pybind11

    python = sys.executable
    run("cmake", "--preset", "asan", "-DPC_BUILD_PYTHON=ON", "-DPC_CUDA=OFF", f"-DPython_EXECUTABLE={python}",
        f"-DPython3_EXECUTABLE={python}", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}")  # fmt: skip
    run("cmake", "--build", "--preset", "asan", "--target", "_core", *NATIVE)


def copy_package() -> None:
    """Copy the installed package, with the sanitized extension."""
    import pycollective

    installed = Path(pycollective.__path__[0])
    shutil.rmtree(SITE, ignore_errors=True)
    unwanted = shutil.ignore_patterns("_core*.so", "_cuda*.so", "__pycache__")
    shutil.copytree(installed, SITE / "pycollective", ignore=unwanted)
    for extension in BUILD.glob("_core*.so"):
        shutil.copy(extension, SITE / "pycollective")


def main() -> None:
    libraries = " ".join(map(runtime, ("libasan.so", "libubsan.so", "libstdc++.so")))  # the last for its exceptions
    jobs = os.environ.get("JOBS", "2")
    build()
    run("ctest", "--preset", "asan", "-j", jobs, ASAN_OPTIONS="detect_leaks=1", UBSAN_OPTIONS=UBSAN)
    copy_package()
    environment = {
        "LD_PRELOAD": libraries,
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": UBSAN,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH", "")])),
        "PYCOLLECTIVE_TIMEOUT": "60",
    }
    tests = sys.argv[1:] or TESTS
    run("pytest", "-q", "-p", "no:cacheprovider", "-n", jobs, "--dist", "loadfile", *tests, **environment)


if __name__ == "__main__":
    main()
