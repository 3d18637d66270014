"""A sweep on ranks of this host or of several, and where its results are written.

``python -m bench.sweep PLAN JSON CSV PLOT`` is the program of each rank on several hosts: a plan as JSON, and the
outputs' paths, empty for none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from .peers import mpi_of
from .ranks.launch import Launcher, LaunchError, find_launcher
from .ranks.remote import run_remote
from .ranks.session import Session, run_plans, worlds
from .ranks.world import first_rank, ranks_started
from .workload.plan import Options, Plan, short_options

if TYPE_CHECKING:
    from rich.console import Console

    from pycollective.cli.launch.hosts import Host

    from .result import Result

__all__ = ["Outputs", "launcher_on_hosts", "run", "run_on_hosts"]


@dataclass(frozen=True)
class Outputs:
    """Destinations of results besides the table; Path("-") is standard output."""

    json: Path | None
    csv: Path | None
    plot: Path | None

    @property
    def for_machines(self) -> bool:
        """Whether standard output is machine-readable."""
        return Path("-") in (self.json, self.csv)

    def check(self) -> None:
        """Report outputs that cannot be written before measuring for an hour; OSError, ValueError or ImportError."""
        from pycollective.cli.outputs import check_picture

        if self.json == self.csv == Path("-"):
            raise ValueError("one of --json and --csv can use standard output")
        for path in (self.json, self.csv):
            if path is not None and path != Path("-") and not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
                path.unlink()
            elif path is not None and path.is_file():
                path.open("a").close()
        if self.plot is not None:
            folder = self.plot if _is_folder(self.plot) else self.plot.parent
            folder.mkdir(parents=True, exist_ok=True)
            check_picture(folder / "x.svg" if _is_folder(self.plot) else self.plot)

    def write(self, result: Result, console: Console) -> None:
        """Write all requested outputs."""
        from pycollective.cli.outputs import write_text

        from .report.plot import plot_rows
        from .result import to_csv, to_json

        for path, text in ((self.json, to_json(result)), (self.csv, to_csv(result.rows))):
            if path is not None:
                if path != Path("-"):
                    path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, text)
        if self.plot is not None:
            for file in plot_rows(result.rows, self.plot):
                console.print(f"plot: {file}", highlight=False)


def _is_folder(plot: Path) -> bool:
    return plot.is_dir() or not plot.suffix


def run(options: Options, outputs: Outputs) -> bool:
    """Measure, show and write results; False if a topology of ours failed, a result was wrong, or nothing ran.

    On ranks that a launcher has started it is collective; the first shows and writes.
    """
    from rich.console import Console

    from .report.live import LiveTable
    from .report.table import row_table

    started = ranks_started()
    if started:
        options = replace(options, ranks=(started,))
    console = Console(stderr=outputs.for_machines, quiet=bool(started) and not first_rank())
    plan = _plan(options)
    with LiveTable(console, len(options.ranks) * (1 if started else len(worlds(plan)))) as live:
        session = Session(live)
        try:
            shown = run_plans([(count, plan) for count in options.ranks], session)
        except LaunchError as error:
            console.print(str(error), style="red", markup=False, highlight=False)
            return False
    if not shown:
        return True
    if not outputs.for_machines:
        if not (console.is_terminal or "COLUMNS" in os.environ):  # columns are kept instead of folded at 80 characters
            console.width = max(console.width, 140)
        console.print(row_table(session.rows, console.width))
    console.print(live.summary(), highlight=False)
    outputs.write(session.result(short_options(options)), console)
    return bool(session.rows) and not session.failed and not any(row.wrong for row in session.rows)


def launcher_on_hosts(options: Options) -> Launcher:
    """The mpirun of the MPI among a sweep's peers, or ``pycollective run``.

    Raises:
        ValueError: several MPIs, of which ranks can use only one, or one whose mpirun is missing.
    """
    names = list(dict.fromkeys(filter(None, map(mpi_of, options.peers))))
    if len(names) > 1:
        raise ValueError(f"ranks on several hosts use one MPI, not {' and '.join(names)}: give one with --peers")
    launcher = find_launcher(names[0]) if names else Launcher("pycollective")
    if launcher.note:
        raise ValueError(f"{launcher.note}; --peers none or gloo measures without MPI")
    return launcher


def run_on_hosts(placed: Sequence[Host], shell: str, launcher: Launcher, options: Options, outputs: Outputs) -> int:
    """`run` on ranks of several hosts, which have this Python and package under the same paths; the exit code."""
    paths = ["" if path is None else str(path) for path in (outputs.json, outputs.csv, outputs.plot)]
    words = [sys.executable, "-m", __spec__.name, msgspec.json.encode(_plan(options)).decode(), *paths]
    return run_remote(placed, shell, launcher, words)


def _plan(options: Options) -> Plan:
    return Plan(sweep=options, budget=options.budget, conditions=options.conditions)


def main(arguments: Sequence[str]) -> int:
    """Run a rank's part; returns the exit code."""
    plan, *paths = arguments
    options = msgspec.json.decode(plan, type=Plan).sweep
    assert options is not None
    return 0 if run(options, Outputs(*(Path(path) if path else None for path in paths))) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
