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

from pycollective.cli.outputs import json_text

from .goals import START, START_RANKS
from .options import new_app
from .ranks.launch import Launcher, LaunchError, same_path

__all__ = ["STAGES", "measure", "scale"]

STAGES = {
    "start": "from the launch until every rank has imported NumPy",
    "init": "import and init() of pycollective",
    "barrier": "first barrier",
    "ring": "first allreduce of 1 KiB by ring",
    "halving_doubling": "first allreduce of 1 MiB by halving_doubling",
    "wheel": "first allreduce of 1 MiB by wheel",
    "direct": "first allreduce of 1 MiB by direct",
    "split": "split into two halves",
    "again": "second allreduce of 1 KiB by ring",
}
"""What is timed, in this order."""
_RANK = str(Path(__file__).parent / "ranks" / "scale_rank.py")

app = new_app()


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
        json_file.write_text(json_text({"seconds": found, "stages": STAGES}) + "\n")


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
    with tempfile.TemporaryDirectory(prefix="pycollective-scale-") as name:
        folder = Path(name)
        script = folder / "rank.py"
        script.write_text(f"{same_path()}import runpy\nrunpy.run_path({_RANK!r})['main']({name!r})\n")
        launcher = Launcher("pycollective")
        command = launcher.command(ranks, [sys.executable, "-I", str(script)])
        launched = time.monotonic()
        with (folder / "log").open("w") as log:
            job = subprocess.Popen(command, env=launcher.environment(ranks), stdout=log, stderr=log)
        try:
            while len(list(folder.glob("*.started"))) < ranks and job.poll() is None:
                if time.monotonic() > launched + timeout:
                    raise subprocess.TimeoutExpired(command, timeout)
                time.sleep(0.02)
            started = time.monotonic()
            (folder / "go").touch()
            code = job.wait(launched + timeout - time.monotonic())
        except subprocess.TimeoutExpired as error:
            raise LaunchError(f"{ranks} ranks have not ended within {timeout:g} s") from error
        finally:
            if job.poll() is None:
                job.terminate()
                job.wait()
        if code:
            raise LaunchError(f"{ranks} ranks: exit code {code}\n{(folder / 'log').read_text()[-4000:]}")
        marks = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    return {"start": round(started - launched, 6), **_seconds(marks)}


def _seconds(marks: list[dict[str, list[float]]]) -> dict[str, float]:
    """Compute each stage's seconds from every rank's (begin, end)."""
    ends = {stage: max(rank[stage][1] for rank in marks) for stage in marks[0]}
    return {stage: round(end - min(rank[stage][0] for rank in marks), 6) for stage, end in ends.items()}


def _table(found: dict[int, dict[str, float]]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("seconds")
    for ranks in found:
        table.add_column(f"{ranks} ranks", justify="right")
    if START_RANKS in found:
        table.add_column(f"goal, {START_RANKS} ranks on 2 cores", justify="right")
    for stage, meaning in STAGES.items():
        goal = [_verdict(stage, found[START_RANKS][stage])] if START_RANKS in found else []
        table.add_row(meaning, *(f"{seconds[stage]:.3f}" for seconds in found.values()), *goal)
    return table


def _verdict(stage: str, seconds: float) -> str:
    return f"<= {START[stage]:g}: {'met' if seconds <= START[stage] else 'NOT MET'}" if stage in START else ""


if __name__ == "__main__":
    app()
