"""``python -m bench.scale``: how long a job of many ranks takes to start, and its first calls to return.

The ranks are processes started by ``pycollective run``.  A stage begins with its first rank and ends with its last one;
a barrier separates it from the previous one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from .launch import Launcher, LaunchError, same_path

__all__ = ["STAGES", "app", "measure", "scale"]

STAGES = {
    "start": "from the launch until every rank has called init(): interpreters and imports",
    "init": "from the last rank's call of init() until every rank has its communicator",
    "barrier": "first barrier",
    "ring": "first allreduce of 1 KiB by ring",
    "halving_doubling": "first allreduce of 1 MiB by halving_doubling",
    "wheel": "first allreduce of 1 MiB by wheel",
    "direct": "first allreduce of 1 MiB by direct",
    "split": "split into two halves",
    "again": "second allreduce of 1 KiB by ring",
}
"""What is timed, in this order."""

_RANK = str(Path(__file__).with_name("scale_rank.py"))

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def scale(
    ranks: Annotated[str, typer.Option(help="rank counts, separated by commas")] = "64",
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write the seconds here")] = None,
    timeout: Annotated[float, typer.Option(help="seconds allowed for each count")] = 300.0,
) -> None:
    """Measure the start and the first calls of jobs of many ranks on this machine."""
    from rich.console import Console

    found = {}
    for word in ranks.split(","):
        try:
            found[int(word)] = measure(int(word), timeout)
        except LaunchError as error:
            Console(stderr=True).print(str(error), style="red", markup=False, highlight=False)
            raise typer.Exit(1) from error
    Console(width=110).print(_table(found))
    if json_file is not None:
        json_file.write_text(json.dumps({"seconds": found, "stages": STAGES}, indent=1) + "\n")


def measure(ranks: int, timeout: float = 300.0) -> dict[str, float]:
    """Run a job of this many ranks.

    Args:
        ranks: processes of the job.
        timeout: seconds after which it is ended.

    Returns:
        seconds of each of STAGES.

    Raises:
        LaunchError: the job failed or took too long; ends with its output.
    """
    with tempfile.TemporaryDirectory(prefix="pycollective-scale-") as folder:
        script = Path(folder) / "rank.py"
        script.write_text(f"{same_path()}import runpy\nrunpy.run_path({_RANK!r})['main']({folder!r})\n")
        launcher = Launcher("pycollective")
        command = launcher.command(ranks, [sys.executable, "-I", str(script)])
        launched = time.monotonic()
        try:
            done = subprocess.run(
                command, env=launcher.environment(ranks), capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise LaunchError(f"{ranks} ranks have not ended within {timeout:g} s") from error
        if done.returncode:
            raise LaunchError(f"{ranks} ranks: exit code {done.returncode}\n{done.stderr[-4000:]}")
        marks = [json.loads(file.read_text()) for file in Path(folder).glob("*.json")]
    return _seconds(marks, launched)


def _seconds(marks: list[dict[str, list[float]]], launched: float) -> dict[str, float]:
    """From every rank's (begin, end) of each stage."""
    called = max(rank["init"][0] for rank in marks)
    found = {"start": called - launched, "init": max(rank["init"][1] for rank in marks) - called}
    for stage in STAGES:
        if stage not in found:
            found[stage] = max(rank[stage][1] for rank in marks) - min(rank[stage][0] for rank in marks)
    return {stage: round(seconds, 4) for stage, seconds in found.items()}


def _table(found: dict[int, dict[str, float]]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("seconds")
    for ranks in found:
        table.add_column(f"{ranks} ranks", justify="right")
    for stage, meaning in STAGES.items():
        table.add_row(meaning, *(f"{seconds[stage]:.3f}" for seconds in found.values()))
    return table


if __name__ == "__main__":
    app()
