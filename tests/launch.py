"""Run a script, a snippet or a function on n ranks, as real processes, under a hard time limit.

Every rank's standard output goes to a separate file, so that outputs never mix; the launcher's exit code
and the ranks' standard error are returned too.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import warm
from speed import deadline

CLI = [sys.executable, "-m", "pycollective"]
"""The `pycollective` command of the package under test; start it outside the source tree."""
# exec keeps the pid: signals and exit codes reach the launcher as if there were no shell.
_WRAPPER = 'exec "$@" >"$0/${PYCOLLECTIVE_RANK:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$RANK}}}.out"'
OPEN_MPI_SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl": "^ofi",  # that component sleeps for a second in MPI_Init
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


@dataclass
class Launched:
    """Result of a launch: `outputs[r]` is rank r's standard output; so are result[r] and iteration."""

    outputs: list[str]
    returncode: int
    stderr: str
    command: list[str] = field(repr=False)

    def __iter__(self) -> Any:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)

    def __getitem__(self, rank: int) -> str:
        return self.outputs[rank]

    def check(self) -> Launched:
        """Itself, or an AssertionError with all output."""
        if self.returncode != 0:
            raise AssertionError(f"exit code {self.returncode}\n{self.report()}")
        return self

    def report(self) -> str:
        """All output, for an assertion's message."""
        shown = "".join(f"--- rank {r}\n{text}" for r, text in enumerate(self.outputs))
        return f"{shown}--- stderr\n{self.stderr}"


def needs(*modules: str) -> None:
    """Skip a test, or a file of tests, where modules are missing. Only the ranks import them, which takes seconds."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}", allow_module_level=True)


def find_mpirun() -> str | None:
    """The mpirun next to this Python, else the one on the PATH; None without mpi4py."""
    try:
        import mpi4py  # noqa: F401
    except ImportError:
        return None
    sibling = Path(sys.executable).parent / "mpirun"
    return str(sibling) if sibling.exists() else shutil.which("mpirun")


def launch(
    n: int,
    script: str | Path | Callable[..., object],
    *args: object,
    launcher: str = "pycollective",
    timeout: float = 60,
    env: Mapping[str, str] | None = None,
    grace: float = 0,
    check: bool = False,
    through: str = "",
    loaded: Sequence[str] = (),
) -> Launched:
    """Run `script` on `n` ranks, in an empty folder, and return what each wrote.

    Args:
        n: number of ranks.
        script: a Path, or a string naming an existing .py file; source text; or a function, whose source is taken
            (its own imports inside it; called with `args` as strings).
        args: passed as sys.argv[1:].
        launcher: "pycollective" (`pycollective run`), "mpirun", "torchrun", or "alone" (plain Python, n must be 1).
        timeout: seconds, of a usual machine, until everything is killed and an AssertionError carries the output so
            far.
        env: variables to add to the environment. grace: as in `pycollective run --grace`.
        check: raise an AssertionError unless the exit code is 0.
        through: the module that runs the script, as `python -m THROUGH SCRIPT`.
        loaded: modules that the ranks' processes have loaded when they start (see warm.py): for scripts of which the
            start itself is not what is tested.
    """
    with tempfile.TemporaryDirectory(prefix="pycollective-test-") as folder:
        file = _script(script, Path(folder))
        out = Path(folder, "out")
        out.mkdir()
        module = ["-m", through] if through else []
        python = warm.python(*loaded) if loaded else [sys.executable]
        program = ["sh", "-c", _WRAPPER, str(out), *python, *module, str(file), *map(str, args)]
        command = [*_launcher(launcher, n, grace, python), *program]
        full = {k: v for k, v in os.environ.items() if not k.startswith(("PYCOLLECTIVE_", "OMPI_", "PMI", "PRTE_"))}
        full |= OPEN_MPI_SETTINGS if launcher == "mpirun" else {}
        full |= warm.RANKS | dict(env or {})
        returncode, stderr = _run(command, full, folder, deadline(timeout))
        outputs = [_text(out / f"{rank}.out") for rank in range(n)] if launcher != "alone" else [_text(out / ".out")]
    result = Launched(outputs, returncode, stderr, command)
    if returncode == _TIMED_OUT:
        raise AssertionError(f"not done after {timeout} s\n{result.report()}")
    return result.check() if check else result


_TIMED_OUT = -1000


def on_two_host_names(
    words: Sequence[str | Path],
    folder: Path,
    env: Mapping[str, str] | None = None,
    ranks: int = 4,
    timeout: float = 110,
    prefix: Sequence[str] = (),
    options: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run `words` on half of the ranks here, and on the other half under another host name (`unshare -u`).

    `prefix`: words before mpirun; `options`: after it. The test is skipped if that is impossible.
    """
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-u", "true"], capture_output=True).returncode:
        pytest.skip("needs unshare -u (root, or user namespaces)")
    mpirun = find_mpirun()
    if mpirun is None:
        pytest.skip("needs mpi4py and an mpirun")
    half = ["-np", str(ranks // 2)]
    elsewhere = ["unshare", "-u", "sh", "-c", 'hostname elsewhere && exec "$@"', "-"]
    program = [*map(str, words)]
    command = [*prefix, mpirun, *options, "--bind-to", "none", *half, *program, ":", *half, *elsewhere, *program]
    environment = {**os.environ, **OPEN_MPI_SETTINGS, **(env or {})}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=deadline(timeout), cwd=folder
    )


def _launcher(name: str, n: int, grace: float, python: Sequence[str] = (sys.executable,)) -> list[str]:
    if name == "pycollective":
        return [*CLI, "run", "--grace", str(grace), "-np", str(n)]
    if name == "mpirun":
        mpirun = find_mpirun()
        if mpirun is None:
            raise AssertionError("no mpirun with mpi4py; mark the test with @needs_mpi")
        return [mpirun, "--allow-run-as-root", "--oversubscribe", "-np", str(n)]
    if name == "torchrun":
        torchrun = [*python, "-m", "torch.distributed.run", "--standalone", "--no-python"]
        return [*torchrun, "--nproc-per-node", str(n)]
    if name == "alone":
        assert n == 1
        return []
    raise ValueError(f"unknown launcher {name!r}")


def _script(script: str | Path | Callable[..., object], folder: Path) -> Path:
    if callable(script):
        source = textwrap.dedent(inspect.getsource(script))
        text = f"{source}\nimport sys\n{script.__name__}(*sys.argv[1:])\n"
    elif isinstance(script, Path) or (script.endswith(".py") and "\n" not in script):
        return Path(script).resolve()
    else:
        text = textwrap.dedent(script)
    file = folder / "script.py"
    file.write_text(text)
    return file


def _run(command: list[str], env: dict[str, str], folder: str, timeout: float) -> tuple[int, str]:
    # A file, not a pipe: a process that outlives the launcher cannot block the test.
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            env=env,
            cwd=folder,  # in the source tree Python would import that instead of the installed package
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
        try:
            returncode = process.wait(timeout)
        except subprocess.TimeoutExpired:
            returncode = _TIMED_OUT
        finally:
            end_job(process)
        errors.seek(0)
        return returncode, errors.read().decode(errors="replace")


def end_job(process: subprocess.Popen[Any]) -> None:
    """Ends a launcher that may still run, the leader of a session, and its ranks."""
    if process.poll() is None:
        process.terminate()  # the launcher ends its ranks
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(8)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def run_command(
    *words: str | Path, code: int | None = 0, timeout: float = 110, **options: Any
) -> subprocess.CompletedProcess[str]:
    """How a command has ended and what it has written; an AssertionError if its exit code is not `code`.

    `options`: of subprocess.run.
    """
    usual: dict[str, Any] = {"capture_output": True, "text": True, "timeout": deadline(timeout)}
    done: subprocess.CompletedProcess[str] = subprocess.run(words, **usual | options)
    assert code is None or done.returncode == code, f"{done.stdout}{done.stderr}"
    return done


def run_module(name: str, *words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """How `python -m NAME WORDS` has ended: see run_command."""
    return run_command(sys.executable, "-m", name, *words, **options)
