"""``python -m bench.layers``: what the layers above the core add to a call.

Nonblocking calls, the engine, pycollective.torch and torch.distributed's backend, against the blocking call, a process
group that does nothing, and Gloo.  All contenders of a group take turns in the same processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .engine.goals import LAYERS
from .engine.run import measure
from .workload.plan import Budget

__all__ = ["app"]

_GROUPS = tuple(dict.fromkeys(goal.group for goal in LAYERS))

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="folder for layers-speed.json and layers-speed.md")] = Path(),
    quick: Annotated[bool, typer.Option("--quick", help="fewer and shorter rounds: to see that it works")] = False,
    ranks: Annotated[int, typer.Option(help="how many; the goals are for two")] = 2,
    group: Annotated[list[str] | None, typer.Option(help=f"only these: {', '.join(_GROUPS)}")] = None,
    group_s: Annotated[float, typer.Option(help="seconds for each group, about")] = 8.0,
) -> None:
    """Measure the layers above the core.  Exit status 1 if a result was wrong."""
    budget = Budget(block_s=0.02, rounds=41, least_rounds=9, group_s=group_s)
    measure("layers", LAYERS, group or _GROUPS, budget, out, ranks, quick)


if __name__ == "__main__":
    app(prog_name=f"python -m {__package__}.layers")
