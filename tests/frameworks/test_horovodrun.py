"""The options of `python -m pycollective.horovod`, and `import horovod` in a whole environment."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import pytest

from launch import OPEN_MPI_SETTINGS, find_mpirun, run_command

SCRIPT = """
import os, sys
import horovod, pycollective.horovod
from horovod.common.exceptions import HorovodInternalError
assert horovod is pycollective.horovod
names = ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME", "HOROVOD_TIMELINE", "HOROVOD_TIMELINE_MARK_CYCLES",
         "HOROVOD_CACHE_CAPACITY", "HOROVOD_AUTOTUNE", "HOROVOD_AUTOTUNE_LOG")
rank = os.environ.get("PYCOLLECTIVE_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK")
with open(f"out.{rank}", "w") as file:
    print(sys.argv[1:], *[os.environ.get(name) for name in names], file=file)
"""


def _horovod(folder: Path, *words: str, code: int = 0, python: str = sys.executable) -> tuple[str, str]:
    """Runs `python -m pycollective.horovod WORDS` in a folder; returns its standard output and error."""
    command = [python, "-I", "-m", "pycollective.horovod", *words]
    ran = run_command(*command, code=code, cwd=folder, env={**os.environ, **OPEN_MPI_SETTINGS})
    return ran.stdout, ran.stderr


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    return file


OPTIONS = [
    *("--fusion-threshold-mb", "0.5", "--cycle-time-ms", "2.5", "--cache-capacity", "7", "--network-interface", "lo"),
    *("--timeline-filename", "t.json", "--timeline-mark-cycles", "--autotune", "--autotune-log-file", "log.csv"),
]
SEEN = "524288 2.5 t.json 1 7 1 log.csv\n"


@pytest.mark.parametrize(
    ("hosts", "program"),
    [([], ["train.py"]), (["-H", "localhost:3"], ["python", "train.py"]), (["--gloo"], ["-m", "train"])],
)
def test_options_reach_the_ranks(script: Path, hosts: list[str], program: list[str]) -> None:
    _, stderr = _horovod(script.parent, "-np", "2", *hosts, *OPTIONS, "--verbose", *program, "--np", "-x")
    assert f"run -np 2 {sys.executable} {' '.join(program[program[0] == 'python' :])} --np -x" in stderr
    for rank in range(2):
        assert (script.parent / f"out.{rank}").read_text() == f"['--np', '-x'] {SEEN}"


@pytest.mark.mpi
@pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun")
def test_ranks_that_mpirun_starts(script: Path) -> None:
    words = ["-np", "2", "--mpi", "-H", "localhost:2", "--mpi-args=--bind-to none", *OPTIONS]
    _horovod(script.parent, *words, "train.py")
    assert [(script.parent / f"out.{rank}").read_text() for rank in range(2)] == [f"[] {SEEN}"] * 2


def test_options_of_a_rank_itself(script: Path) -> None:
    _horovod(script.parent, *OPTIONS, "train.py", "-np", "2")
    assert (script.parent / "out.None").read_text() == f"['-np', '2'] {SEEN}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-H a:4 train.py", "-H needs -np"),
        ("--gloo train.py", "--gloo needs -np"),
        ("-np 2 -H a:x train.py", "-H a:x: must be host:ranks"),
        ("-np 2 -H a:0 train.py", "-H a:0: must be host:ranks"),
        ("-np 2 -H a:² train.py", "-H a:²: must be host:ranks"),
        ("-np 5 -H localhost:4 train.py", "there is room for 4 ranks"),
        ("-np 2 --gloo --mpi train.py", "--gloo starts ranks without MPI"),
        ("-np 2 --gloo -H elsewhere:2 train.py", "--gloo starts ranks without MPI"),
        ("-np 0 train.py", "-np"),
        ("--spam train.py", "no such option: --spam"),
        ("--autotune nothing.py", "there is no file nothing.py"),
    ],
)
def test_what_makes_no_sense_is_refused(script: Path, words: str, message: str) -> None:
    _, stderr = _horovod(script.parent, *words.split(), code=2)
    assert message in stderr and stderr.startswith("✗") and stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", "a script, or -m and a module, is missing"),
        ("-m", "a script, or -m and a module, is missing"),
        ("nothing.py", "there is no file nothing.py"),
    ],
)
def test_usage(script: Path, words: str, reason: str) -> None:
    _, stderr = _horovod(script.parent, *words.split(), code=1)
    assert stderr.startswith("usage: python -m pycollective.horovod") and stderr.endswith(f"\n{reason}\n")


def test_an_error_of_the_script_is_its_own(script: Path) -> None:
    script.write_text("raise ValueError('of mine')")
    _, stderr = _horovod(script.parent, "train.py", code=1)
    assert "ValueError: of mine" in stderr and "usage" not in stderr


@pytest.fixture
def environment(tmp_path: Path) -> tuple[str, Path]:
    """The Python of a virtual environment that sees the packages of this one, and where its own are."""
    folder = tmp_path / "environment"
    run_command(sys.executable, "-m", "venv", "--without-pip", folder)
    python = str(folder / "bin" / "python")
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    place = Path(run_command(python, "-c", query).stdout.strip())
    (place / "outer.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return python, place


def _imports(python: str, module: str) -> bool:
    return run_command(python, "-I", "-c", f"import {module}", code=None).returncode == 0


def test_install_and_uninstall(environment: tuple[str, Path], tmp_path: Path) -> None:
    python, place = environment
    assert not _imports(python, "horovod")
    stdout, _ = _horovod(tmp_path, "install", python=python)
    assert f"{place}/pycollective-horovod.pth" in stdout
    assert _imports(python, "horovod.common.util") and not _imports(python, "horovod.spark")
    _horovod(tmp_path, "install", python=python)  # again is no error
    stdout, _ = _horovod(tmp_path, "uninstall", python=python)
    assert stdout.startswith("removed ")
    assert not _imports(python, "horovod")
    assert _horovod(tmp_path, "uninstall", python=python)[0] == "it was not installed\n"


def test_install_is_refused_beside_horovod(environment: tuple[str, Path], tmp_path: Path) -> None:
    python, place = environment
    theirs = place / "horovod-0.28.1.dist-info"
    theirs.mkdir()
    (theirs / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    _, stderr = _horovod(tmp_path, "install", code=1, python=python)
    assert "Horovod 0.28.1 is installed here" in stderr
    assert not list(place.glob("pycollective*.pth"))
