"""``pycollective demo``: training on four ranks, then our topologies against other libraries.

It needs only the package; missing scikit-learn, matplotlib or MPI is reported and worked around.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from pycollective.cli.commands import Command, refusing
from pycollective.schedule.language import registry
from pycollective.schedule.language.user_files import near_files

from .options import new_app
from .ranks.launch import LaunchError, find_launcher
from .ranks.session import Session
from .report.live import LiveTable, can_redraw
from .report.plot import plot_rows
from .report.table import pivot_table
from .result import available_cores, to_json
from .runner import report_error, wide_console
from .workload.plan import NAMES, Budget, Options, Plan, short_options

__all__ = ["demo"]

RANKS = 4
TOPOLOGIES = ("direct", "ring", "tree", "wheel", "star", "halving_doubling", "random")
LEAST_ACCURACY = 0.96
_LAST_LINE = re.compile(r"accuracy\s+([\d.]+)\s+digest\s+([0-9a-f]+)")

app = new_app()


@dataclass(frozen=True)
class Training:
    """The output of a run of examples/digits.py."""

    topology: str
    accuracy: float
    digest: str
    seconds: float


@app.command(cls=Command)
def demo(
    out: Annotated[Path, typer.Option(help="folder for the plot and the figures")] = Path("build/demo"),
    epochs: Annotated[int, typer.Option(help="of each training")] = 30,
    example: Annotated[Path | None, typer.Option(help="the training program (default: examples/digits.py)")] = None,
) -> None:
    """Train a network on four ranks with every topology, then compare the topologies with Open MPI and Gloo."""
    console = wide_console(140)
    start = perf_counter()
    with refusing():
        program = example or _find_example()
        if not program.is_file():
            raise FileNotFoundError(f"there is no file {program}{near_files(program)}")
    missing = _find_missing()
    for line in missing.values():
        console.print(line, style="yellow", markup=False, highlight=False)
    synthetic = example is None and "sklearn" in missing
    try:
        sound = _train_all(console, program, epochs, synthetic)
        sound = _sweep(console, out, plot="matplotlib" not in missing) and sound
    except LaunchError as error:
        report_error(error, console)
        raise typer.Exit(1) from error
    console.print(f"{perf_counter() - start:.0f} s in all", style="dim", highlight=False)
    if not sound:
        raise typer.Exit(1)


def _find_example() -> Path:
    places = [Path("examples/digits.py"), Path(__file__).resolve().parents[1] / "examples" / "digits.py"]
    for place in places:
        if place.is_file():
            return place
    raise FileNotFoundError("examples/digits.py is not here: run this in the repository, or name it by --example")


def _find_missing() -> dict[str, str]:
    """Module that is not installed -> what the demo does without it, and the command that installs it."""
    lines = {"mpi": find_launcher().note} if find_launcher().note else {}
    without = {
        "sklearn": "scikit-learn is not installed: noisy patterns instead of digits; `pip install scikit-learn`",
        "matplotlib": "matplotlib is not installed: no plot; `pip install matplotlib`",
    }
    return lines | {module: line for module, line in without.items() if importlib.util.find_spec(module) is None}


def _train_all(console: Console, example: Path, epochs: int, synthetic: bool) -> bool:
    """Train with every topology; whether all are accurate and those that keep rank order are bitwise identical."""
    by = "mpirun" if find_launcher().program else "pycollective run"
    data = "noisy patterns" if synthetic else "handwritten digits"
    console.print(f"\n[bold]Data-parallel SGD on {data}, {by} -np {RANKS}[/]")
    if available_cores() < RANKS:
        console.print(f"{RANKS} ranks share {available_cores()} cores: each waits while others run", style="dim")
    done: list[Training] = []
    with Live(console=console, auto_refresh=False) as live:
        for topology in TOPOLOGIES:
            live.update(_training_table(done, topology), refresh=can_redraw(console))
            done.append(_train(example, topology, epochs, synthetic))
        live.update(_training_table(done, None), refresh=True)
    orders = _rank_ordered()
    same = all(one.digest == done[0].digest for one in done if one.topology in orders)
    return same and all(one.accuracy >= LEAST_ACCURACY for one in done)


def _train(example: Path, topology: str, epochs: int, synthetic: bool) -> Training:
    launcher = find_launcher()
    words = [sys.executable, str(example), "--topology", topology, "--epochs", str(epochs), "--quiet"]
    words += ["--synthetic"] * synthetic
    start = perf_counter()
    done = subprocess.run(
        launcher.command(RANKS, words),
        env=launcher.environment(RANKS),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    seconds = perf_counter() - start
    found = _LAST_LINE.search(done.stdout)
    if done.returncode or not found:
        raise LaunchError(f"{example} with {topology}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return Training(topology, float(found[1]), found[2], seconds)


def _rank_ordered() -> set[str]:
    return {topology for topology in TOPOLOGIES if registry.info(topology).order == "rank"}


def _training_table(done: list[Training], running: str | None) -> Table:
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("topology", "accuracy", "weights", "same as direct", "time with start"):
        table.add_column(heading, justify="left" if heading in ("topology", "weights", "same as direct") else "right")
    orders = _rank_ordered()
    for one in done:
        same = one.digest == done[0].digest
        verdict = "[green]yes, bit for bit[/]" if same else "no: sums in another order"
        if not same and one.topology in orders:
            verdict = "[bold red]no, and it should be[/]"
        accuracy = f"{one.accuracy:.2%}"
        if one.accuracy < LEAST_ACCURACY:
            accuracy = f"[bold red]{accuracy}[/]"
        table.add_row(one.topology, accuracy, one.digest[:12], verdict, f"{one.seconds:.1f} s")
    if running:
        table.add_row(running, f"{len(done) + 1} of {len(TOPOLOGIES)}", "", "", "", style="dim")
    return table


def _sweep(console: Console, out: Path, plot: bool) -> bool:
    """A small sweep, its table and, if requested, its plot; whether every result was right."""
    console.print()
    console.print(f"[bold]allreduce of float32, {RANKS} ranks[/], ours on windows")
    options = Options(
        topologies=TOPOLOGIES,
        sizes="1K:16M:x4",
        ranks=(RANKS,),
        paths=("windows",),
        budget=Budget(block_s=0.01, rounds=9, least_rounds=3, group_s=1.5),
    )
    with LiveTable(console, 1) as live:
        session = Session(live)
        session.notes += [find_launcher().note] if find_launcher().note else []  # shown already
        session.run(Plan(sweep=options, budget=options.budget), RANKS)
    libraries = {row.library for row in session.rows}
    theirs = next((library for library in ("openmpi", "mpich", "gloo") if library in libraries), "")
    console.print(pivot_table(session.rows, theirs, console.width))
    if theirs:
        console.print(
            f"time, and how many times faster than {NAMES[theirs]} (median of interleaved rounds)", style="dim"
        )
    out.mkdir(parents=True, exist_ok=True)
    (out / "sweep.json").write_text(to_json(session.result(short_options(options))))
    for path in plot_rows(session.rows, out, "png") if plot else ():
        console.print(f"plot: {path}", highlight=False)
    return bool(session.rows) and not any(row.wrong for row in session.rows)


if __name__ == "__main__":
    app(prog_name=f"python -m {__package__}.demo")
