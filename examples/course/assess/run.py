"""Runs a student's script on several ranks, each by probe.py, and ends whatever it leaves running."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROBE = Path(__file__).resolve().with_name("probe.py")
TOKEN = "COURSE_ASSESSMENT"
"""Environment variable by which the processes of a run are found."""


@dataclass
class Run:
    """What a run of the script has left.

    Attributes:
        ranks: number of ranks.
        code: exit code of the launcher; None: it was ended after `seconds`.
        seconds: duration.
        records: rank -> the record of probe.py, of the ranks that have ended by themselves.
        printed: rank -> standard output.
        stacks: rank -> where it was when the time was over.
        errors: standard error of all ranks.
    """

    ranks: int
    code: int | None = None
    seconds: float = 0.0
    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    printed: dict[int, str] = field(default_factory=dict)
    stacks: dict[int, str] = field(default_factory=dict)
    errors: str = ""


def run(script: Path, ranks: int, words: list[str], seconds: float, mpi: bool) -> Run:
    """Run the script on `ranks` ranks, in an empty folder, for at most `seconds`."""
    with tempfile.TemporaryDirectory(prefix="assess-") as name:
        work, notes = Path(name, "work"), Path(name, "notes")
        work.mkdir(), notes.mkdir()
        probe = [sys.executable, str(PROBE), str(notes), str(max(1.0, seconds - 2))]
        command = [*_launcher(ranks, mpi), *probe, str(script), *words]
        token = secrets.token_hex(8)
        environment = {**os.environ, TOKEN: token, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
        done, begin = Run(ranks), time.monotonic()
        with open(Path(name, "errors"), "w+") as errors:  # a file: a process that is left cannot block us
            process = subprocess.Popen(command, cwd=work, env=environment, stderr=errors, start_new_session=True)
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    done.code = process.wait(seconds)
            finally:
                if process.poll() is None:
                    process.terminate()  # the launcher ends its ranks
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(10)
                done.seconds = time.monotonic() - begin
                _kill_all(token)
                process.wait()
            errors.seek(0)
            done.errors = errors.read()
        for rank in range(ranks):
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):  # of a rank that was ended early
                done.printed[rank] = (notes / f"{rank}.out").read_text(errors="replace")
                done.stacks[rank] = (notes / f"{rank}.stack").read_text(errors="replace")
                done.records[rank] = json.loads((notes / f"{rank}.json").read_text())
    return done


def _launcher(ranks: int, mpi: bool) -> list[str]:
    if not mpi:
        return [sys.executable, "-m", "pycollective", "run", "-np", str(ranks)]
    sibling = Path(sys.executable).with_name("mpirun")
    mpirun = str(sibling) if sibling.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise FileNotFoundError("there is no mpirun; without --mpi the ranks are started by `pycollective run`")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [mpirun, *root, "-np", str(ranks)]


def _kill_all(token: str) -> None:
    """Kill the processes of a run that are left, which have its token in their environment."""
    wanted = f"{TOKEN}={token}".encode()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if int(entry.name) != os.getpid() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
