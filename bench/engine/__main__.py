"""``python -m bench.engine``: measure, show the table, write ``engine-speed.json`` and ``engine-speed.md``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ..goals import ENGINE
from ..options import Quick, new_app, out_option
from ..workload.plan import Budget
from .run import Groups, Ranks, measure

app = new_app()


@app.command()
def main(
    out: Annotated[Path, out_option("engine-speed")] = Path(),
    quick: Quick = False,
    ranks: Ranks = 2,
    group: Groups = None,
) -> None:
    """Measure the engine against Gloo, DistributedDataParallel and Open MPI.  Exit status 1 if a result was wrong."""
    budget = Budget(block_s=0.05, rounds=41, least_rounds=11, group_s=20.0)
    measure("engine", ENGINE, group, budget, out, ranks, quick)


if __name__ == "__main__":
    app(prog_name=f"python -m {__package__}")
