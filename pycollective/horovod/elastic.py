"""`python -m pycollective.horovod.elastic`: a job on as many ranks of this host as a discovery script reports slots.

    python -m pycollective.horovod.elastic -np 2 --max-np 8 --host-discovery-script ./slots.sh train.py

The options are those of `horovodrun`. When the number of slots changes, the job is ended after its next commit and
restarted from there (see hvd/elastic/commit_file.py); when a rank fails, immediately. A job that fails without a new
commit is not restarted. In all of its processes `import horovod` resolves to pycollective.horovod.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pycollective import horovod, settings
from pycollective.cli.commands import Command, complain
from pycollective.hvd.elastic.commit_file import VARIABLE
from pycollective.hvd.elastic.running import timeout

LOOK_EVERY = 1.0
"""Seconds between calls of the discovery script, as in Horovod."""
_HERE = {"localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn()}


def slots(script: str, default: int) -> int:
    """The number of slots on this host.

    Args:
        script: a program that writes lines `host:slots`, or `host`; other hosts are ignored.
        default: slots of a line without a number.

    Raises:
        RuntimeError: the script fails, or writes something else.
    """
    try:
        words = subprocess.run([script], check=True, capture_output=True, text=True, timeout=60).stdout.split()
        rows = [line.partition(":") for line in words]
        return sum(int(count) if count else default for host, _, count in rows if host in _HERE)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise RuntimeError(f"the discovery script {script}: {error}") from error


class Driver:
    """Starts the job repeatedly.

    Args:
        least, most: limits of the number of ranks; most None: the number of slots.
        file: of the commits.
    """

    def __init__(
        self, command: Sequence[str], script: str, default: int, least: int, most: int | None, file: Path
    ) -> None:
        self.command, self.script, self.default = command, script, default
        self.least, self.most, self.file = least, most, file
        self.size = 0

    def run(self, first: int, resets: int | None) -> int:
        """Wait until the job has ended; returns its exit code.

        Args:
            first: number of slots needed to start.
            resets: maximum number of restarts; None: unlimited.

        Raises:
            RuntimeError: too few slots within HOROVOD_ELASTIC_TIMEOUT, or the first call of the script fails.
        """
        self._look(slots(self.script, self.default))
        needed, left = first, resets
        while True:
            self._await_room(needed)
            needed, before = self.least, self._committed()
            code = self._run_once()
            if code == 0 or (code is not None and self._committed() == before):
                return code
            if left == 0:
                return 1 if code is None else code
            left = None if left is None else left - 1
            why = "the slots have changed" if code is None else f"a rank failed with code {code}"
            print(f"pycollective.horovod.elastic: {why}; restarting", file=sys.stderr, flush=True)

    def _run_once(self) -> int | None:
        """The exit code of the job; None: it was ended because the number of slots has changed."""
        launcher = [sys.executable, "-m", "pycollective.cli.main", "run", "-np", str(self.size), *self.command]
        job = subprocess.Popen(launcher, env=horovod.environment() | {VARIABLE: str(self.file)})
        started_with, stale = self.size, 0
        try:
            while True:
                try:
                    return job.wait(LOOK_EVERY if self.size == started_with else 0.02)
                except subprocess.TimeoutExpired:
                    pass
                if self.size != started_with:
                    if self._committed() != stale:  # just committed: almost nothing is lost
                        return None
                    continue
                self._look_again()
                stale = self._committed()
        finally:
            job.terminate()
            job.wait()

    def _look_again(self) -> None:
        try:
            self._look(slots(self.script, self.default))
        except RuntimeError as error:
            print(f"pycollective.horovod.elastic: {error}", file=sys.stderr, flush=True)

    def _look(self, found: int) -> None:
        self.size = found if self.most is None else min(found, self.most)

    def _await_room(self, needed: int) -> None:
        end = time.monotonic() + timeout()
        while self.size < needed:
            if time.monotonic() > end:
                raise RuntimeError(f"there is room for {self.size} ranks, not for {needed}")
            time.sleep(LOOK_EVERY)
            self._look_again()

    def _committed(self) -> int:
        """A value that changes with each commit."""
        return self.file.stat().st_mtime_ns if self.file.exists() else 0


app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
)


@app.command(cls=Command, context_settings={"allow_interspersed_args": False})
def elastic(
    command: Annotated[list[str], typer.Argument(help="program and arguments")],
    first: Annotated[int, typer.Option("-np", "--num-proc", min=1, help="ranks to begin with")],
    script: Annotated[str, typer.Option("--host-discovery-script", help="writes lines host:slots")],
    least: Annotated[
        int | None, typer.Option("--min-np", min=1, help="fewest ranks to continue with", show_default="-np")
    ] = None,
    most: Annotated[
        int | None, typer.Option("--max-np", min=1, help="most ranks", show_default="as many as there are slots")
    ] = None,
    default: Annotated[int, typer.Option("--slots", min=1, help="of a host without a number")] = 1,
    resets: Annotated[
        int | None,
        typer.Option("--reset-limit", min=0, help="most restarts of the job", show_default="as often as it takes"),
    ] = None,
) -> None:
    """Run a job on as many ranks of this host as a script reports room for; restart it when that number changes."""
    least = first if least is None else least
    if not least <= first <= (first if most is None else most):
        complain(f"--min-np {least}, -np {first}, --max-np {most}: each must be at most the next")
        raise typer.Exit(2)
    with tempfile.TemporaryDirectory(prefix="pycollective-") as folder:
        file = Path(settings.read(VARIABLE) or Path(folder, "commits")).absolute()
        driver = Driver(command, script, default, least, most, file)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # not without the job
        try:
            code = driver.run(first, resets)
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
        except RuntimeError as error:
            typer.echo(f"pycollective.horovod.elastic: {error}", err=True)
            code = 1
    raise typer.Exit(code)


if __name__ == "__main__":
    app(prog_name="python -m pycollective.horovod.elastic")
