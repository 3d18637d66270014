"""The native tests: built with CMake's presets `cpu` and `tsan`, then run by ctest, which CMakeLists.txt tells how.

The executor runs every compiled schedule with ranks as threads: under the thread sanitizer, with one and with four
lanes per rank. So do the GPU's kernels, with their blocks' threads as threads. Three faults are injected, to show that
the sanitizer would detect them.
"""

from __future__ import annotations

import fcntl
import functools
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from speed import deadline

ROOT = Path(__file__).resolve().parents[2]
PATH = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
AT_FULL_SPEED = ("units|link|cuda_combine", "run_.*", "attempt_.*", "progress_.*", "lanes_.*", "board|engine",
                 "cuda_schedules_2|cuda_packets_[25]")  # fmt: skip
SANITIZED = ("link|faults", "run_.*", "attempt_.*", "progress_.*", "lanes_.*", "board|engine", "cuda_.*_3",
             ".*_caught")  # fmt: skip
"""Names of ctest's tests, as regular expressions."""

pytestmark = pytest.mark.timeout(600)


def run(*command: object, timeout: float = 120, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command; its output is stdout and stderr combined. CMake and Ninja may come from this environment."""
    environment = {**os.environ, "PATH": PATH, **variables}
    words = [str(word) for word in command]
    words[0] = shutil.which(words[0], path=PATH) or words[0]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(words, text=True, cwd=ROOT, env=environment, timeout=deadline(timeout), check=False, **pipes)


def last_lines(text: str, count: int = 40) -> str:
    return "\n".join(text.splitlines()[-count:])


@functools.cache
def why_not() -> str:
    """Why this machine cannot build the native tests; empty if it can."""
    missing = [tool for tool in ("cmake", "ninja", os.environ.get("CXX", "c++")) if not shutil.which(tool, path=PATH)]
    return f"not found: {', '.join(missing)}" if missing else ""


def installed_core() -> str:
    """The installation's core library, if it is newer than all of its sources: saves a minute."""
    sources = [*(ROOT / "csrc").rglob("*"), *(ROOT / "cmake").iterdir(), ROOT / "CMakeLists.txt"]
    sources += [ROOT / "pycollective" / table for table in ("settings.py", "dtypes.py", "schedule/collectives.py")]
    youngest = max(file.stat().st_mtime for file in sources)
    found = [file for file in ROOT.glob("build/cp[0-9]*/libpc_core.a") if file.stat().st_mtime > youngest]
    return str(found[0]) if found else ""


@functools.cache
def build(preset: str, *targets: str) -> Path:
    """Build a preset; returns the folder with its binaries."""
    folder = ROOT / "build" / preset
    folder.mkdir(parents=True, exist_ok=True)
    core = installed_core() if preset == "cpu" else ""
    python, library = f"-DPython3_EXECUTABLE={sys.executable}", f"-DPC_CORE_LIBRARY={core}"
    with (folder / "lock").open("w") as lock:  # other test processes build others of its targets
        fcntl.flock(lock, fcntl.LOCK_EX)
        configured = run("cmake", "--preset", preset, python, library)
        assert configured.returncode == 0, last_lines(configured.stdout)
        built = run("cmake", "--build", "--preset", preset, "--target", *targets, timeout=540)
        assert built.returncode == 0, last_lines(built.stdout)
    return folder / "tests" / "native"


def ctest(preset: str, names: str, *prefix: str) -> None:
    """Run the tests whose names match. Schedules have been dumped."""
    options = ("--fixture-exclude-any", "schedules", "--no-tests=error", "--timeout", deadline(120))
    done = run(*prefix, "ctest", "--preset", preset, "-R", f"^({names})$", *options, timeout=540)
    assert done.returncode == 0, last_lines(done.stdout, 100)


@pytest.fixture(scope="session")
def plain() -> Callable[[str], None]:
    """Runs tests at full speed."""
    if why_not():
        pytest.skip(why_not())
    build("cpu", "unit_test", "link_test", "executor_test", "engine_test", "cuda_blocks_test", "cuda_combine_test")
    assert run("ctest", "--preset", "cpu", "-R", "dump_schedules").returncode == 0
    return functools.partial(ctest, "cpu")


def sanitizer(folder: Path) -> tuple[list[str], str]:
    """The command prefix to run a sanitized program with, and why that does not work here."""
    source, program = folder / "empty.cpp", folder / "empty"
    source.write_text("int main() { return 0; }\n")
    made = run(os.environ.get("CXX", "c++"), "-fsanitize=thread", source, "-o", program)
    if made.returncode != 0:
        return [], f"the compiler has no thread sanitizer (libtsan): {last_lines(made.stdout, 2)}"
    # Some kernels use memory layouts that older sanitizers refuse, unless randomization is off.
    for words in ([], ["setarch", platform.machine(), "-R"]):
        ran = run(*words, program)
        if ran.returncode == 0:
            return words, ""
    return [], f"the thread sanitizer does not run here: {last_lines(ran.stdout, 2)}"


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], None]:
    """Runs tests under the thread sanitizer."""
    prefix, problem = ([], why_not()) if why_not() else sanitizer(tmp_path_factory.mktemp("sanitizer"))
    if problem:
        pytest.skip(problem)
    build("tsan", "link_test", "executor_test", "faults_test", "engine_test", "cuda_blocks_test",
          "weak_acquire_test", "weak_flag_test")  # fmt: skip
    assert run("ctest", "--preset", "tsan", "-R", "dump_schedules").returncode == 0
    return lambda names: ctest("tsan", names, *prefix)


@pytest.mark.parametrize("names", AT_FULL_SPEED)
def test_at_full_speed(plain: Callable[[str], None], names: str) -> None:
    plain(names)


@pytest.mark.parametrize("names", SANITIZED)
def test_no_race(sanitized: Callable[[str], None], names: str) -> None:
    """And a race where a fault was injected."""
    sanitized(names)
