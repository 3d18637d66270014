"""``python -m bench.engine``: measure, show the table, write ``engine-speed.json`` and ``engine-speed.md``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..workload.plan import Budget
from .goals import GOALS
from .groups import GROUPS
from .run import measure

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="folder for engine-speed.json and engine-speed.md")] = Path(),
    quick: Annotated[bool, typer.Option("--quick", help="fewer and shorter rounds: to see that it works")] = False,
    ranks: Annotated[int, typer.Option(help="how many; the goals are for two")] = 2,
    group: Annotated[list[str] | None, typer.Option(help=f"only these: {', '.join(GROUPS)}")] = None,
) -> None:
    """Measure the engine against Gloo, DistributedDataParallel and Open MPI.  Exit status 1 if a result was wrong."""
    groups = group or list(dict.fromkeys(goal.group for goal in GOALS))
    budget = Budget(block_s=0.05, rounds=41, least_rounds=11, group_s=20.0)
    measure("engine", GOALS, groups, budget, out, ranks, quick)


if __name__ == "__main__":
    app(prog_name=f"python -m {__package__}")
