"""``python -m bench.layers``: what the layers above the core add to a call.

Nonblocking calls, the engine, pycollective.torch and torch.distributed's backend, against the blocking call, a process
group that does nothing, and Gloo.  All contenders of a group take turns in the same processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .engine.run import Groups, Ranks, measure
from .goals import LAYERS
from .options import Quick, new_app, out_option
from .workload.plan import Budget

app = new_app()


@app.command()
def main(
    out: Annotated[Path, out_option("layers-speed")] = Path(),
    quick: Quick = False,
    ranks: Ranks = 2,
    group: Groups = None,
    group_s: Annotated[float, typer.Option(help="seconds for each group, about")] = 8.0,
) -> None:
    """Measure the layers above the core.  Exit status 1 if a result was wrong."""
    budget = Budget(block_s=0.02, rounds=41, least_rounds=9, group_s=group_s)
    measure("layers", LAYERS, group, budget, out, ranks, quick)


if __name__ == "__main__":
    app(prog_name=f"python -m {__package__}.layers")
