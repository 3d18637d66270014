"""The native tests: built with CMake's presets `cpu` and `tsan`, then run one by one.

The executor runs every compiled schedule with ranks as threads: under the thread sanitizer, with one and with four
lanes per rank. So do the GPU's kernels, with their blocks' threads as threads. Three faults are injected, to show that
the sanitizer would detect them.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
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
HERE = ROOT / "tests" / "native"
PATH = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
RACE = "ThreadSanitizer: data race"
RACE_EXIT = 66

SIZES = (2, 3, 5)
MODES = ("run", "attempt", "progress", "lanes")
REPEATS = {"run": 4, "attempt": 3, "progress": 2, "lanes": 1}

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


@pytest.fixture(scope="session")
def plain() -> Callable[..., None]:
    """Runs a program, which must end well."""
    if why_not():
        pytest.skip(why_not())
    programs = ("unit_test", "link_test", "executor_test", "engine_test", "cuda_blocks_test", "cuda_combine_test")
    folder = build("cpu", *programs)

    def passes(program: str, *words: object, **variables: str) -> None:
        done = run(folder / program, *words, **variables)
        assert done.returncode == 0, last_lines(done.stdout)

    return passes


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
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Runs a program under the thread sanitizer, which must find no race, or one."""
    prefix, problem = ([], why_not()) if why_not() else sanitizer(tmp_path_factory.mktemp("sanitizer"))
    if problem:
        pytest.skip(problem)
    programs = ("link_test", "executor_test", "faults_test", "engine_test", "cuda_blocks_test")
    folder = build("tsan", *programs, "weak_acquire_test", "weak_flag_test")

    def passes(program: str, *words: object, race: bool = False, **variables: str) -> None:
        options = f"halt_on_error=1 exitcode={RACE_EXIT}"
        done = run(*prefix, folder / program, *words, TSAN_OPTIONS=options, **variables)
        assert done.returncode == (RACE_EXIT if race else 0), done.stdout[:4000]
        assert RACE in done.stdout if race else "ThreadSanitizer" not in done.stdout, done.stdout[:4000]

    return passes


@pytest.fixture(scope="session")
def schedules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schedules")
    dumped = run(sys.executable, HERE / "dump_schedules.py", folder)
    assert dumped.returncode == 0, last_lines(dumped.stdout)
    return folder


@pytest.mark.parametrize("program", ["unit_test", "link_test", "cuda_combine_test"])
def test_units(plain: Callable[..., None], program: str) -> None:
    plain(program)


# 5 x 4 threads of `lanes` take longest, and run under the sanitizer.
@pytest.mark.parametrize(("mode", "size"), sorted({*itertools.product(MODES, SIZES)} - {("lanes", 5)}))
def test_executor_at_full_speed(plain: Callable[..., None], schedules: Path, mode: str, size: int) -> None:
    plain("executor_test", mode, schedules / f"ranks-{size}.txt", "", REPEATS[mode])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", MODES)
def test_executor_has_no_race(sanitized: Callable[..., None], schedules: Path, mode: str, size: int) -> None:
    """`run`, `attempt` and `progress` have one lane per rank, `lanes` has four."""
    sanitized("executor_test", mode, schedules / f"ranks-{size}.txt")


@pytest.mark.parametrize("part", ["board", "engine"])
def test_the_engine_at_full_speed(plain: Callable[..., None], schedules: Path, part: str) -> None:
    """Ranks as threads that submit in different orders: what they agree on, and the results."""
    plain("engine_test", part, PC_TEST_SCHEDULES=str(schedules))


@pytest.mark.parametrize("words", ["link_test", "faults_test", "engine_test board", "engine_test engine"])
def test_programs_have_no_race(sanitized: Callable[..., None], schedules: Path, words: str) -> None:
    sanitized(*words.split(), PC_TEST_SCHEDULES=str(schedules))


def test_a_weakened_acquire_is_caught(sanitized: Callable[..., None], schedules: Path) -> None:
    """A program with every acquire of a counter made relaxed: correct results on x86, but a race."""
    sanitized("weak_acquire_test", "run", schedules / "ranks-3.txt", race=True)


def test_a_missing_barrier_shows_with_several_lanes_only(sanitized: Callable[..., None], schedules: Path) -> None:
    """Without the barrier between a step and its publication, lane 0 announces what other lanes have not done."""
    sanitized("executor_test", "unsynced", schedules / "ranks-3.txt")
    sanitized("executor_test", "unsynced-lanes", schedules / "ranks-3.txt", race=True)


@pytest.mark.parametrize(("mode", "size"), [("schedules", 2), ("packets", 2), ("packets", 5)])
def test_gpu_blocks_at_full_speed(plain: Callable[..., None], schedules: Path, mode: str, size: int) -> None:
    """The kernels' source, two channels per rank and three threads per channel; `packets`: the low-latency path."""
    plain("cuda_blocks_test", mode, schedules / f"ranks-{size}.txt")


@pytest.mark.parametrize("mode", ["schedules", "packets"])
def test_gpu_blocks_have_no_race(sanitized: Callable[..., None], schedules: Path, mode: str) -> None:
    sanitized("cuda_blocks_test", mode, schedules / "ranks-3.txt")


def test_a_relaxed_flag_is_caught(sanitized: Callable[..., None], schedules: Path) -> None:
    """A GPU flag loaded without acquire."""
    sanitized("weak_flag_test", "schedules", schedules / "ranks-3.txt", race=True)
