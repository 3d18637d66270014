"""``python -m bench.jobs``: what two jobs on the same cores cost each other, for ours and for other libraries.

The jobs do not know of each other: each is started as if it had the cores to itself. A library's factor is the time of
an allreduce while two jobs run, over its time while one does, with as many ranks in each. Both were measured in turn.
With ``--neighbours`` the factor is that of busy processes of the lowest priority beside a job, instead of a second job.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated

import typer

from pycollective.cli import outputs
from pycollective.cli.commands import Command, refusing
from pycollective.cli.options import Json
from pycollective.cli.units import format_size, format_time, parse_sizes

from .goals import NEIGHBOUR
from .options import chosen, new_app
from .peers import MPIS
from .ranks.launch import Launcher, LaunchError, busy_neighbours, find_launcher, launch
from .workload.cases import case_of
from .workload.plan import NAMES, OURS, Budget, Candidate, Plan

__all__ = ["Factor", "factor_of", "times_of"]

SCHEMA = "pycollective-jobs/1"
JOBS = 2

app = new_app()


@dataclass(frozen=True)
class Factor:
    """One library at one size: median seconds per call of a job alone, and beside another or busy processes."""

    library: str
    bytes: int
    alone: float
    together: float

    @property
    def factor(self) -> float:
        return self.together / self.alone


def factor_of(library: str, size: int, ranks: int, rounds: int, budget: Budget, neighbours: int = 0) -> Factor:
    """Measure one job and two, or one beside neighbours, in turn, several times.  Raises LaunchError."""
    alone, together = list[float](), list[float]()
    for _ in range(rounds):
        alone += times_of(library, size, ranks, 1, budget)
        with busy_neighbours(neighbours):
            together += times_of(library, size, ranks, 1 if neighbours else JOBS, budget)
    return Factor(library, size, median(alone), median(together))


def times_of(library: str, size: int, ranks: int, jobs: int, budget: Budget) -> list[float]:
    """Seconds per call in the turns of so many simultaneous jobs, except those in which others may not have run."""
    with ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(_job, library, size, ranks, budget) for _ in range(jobs)]
        turns = [job.result() for job in running]
    return [seconds for job in turns for seconds in job[len(job) // 4 : len(job) - len(job) // 4]]


def _job(library: str, size: int, ranks: int, budget: Budget) -> list[float]:
    """Seconds per call in each turn of a job that measures one case."""
    case = case_of("allreduce", size, ranks)
    peers, topology = ((), "default") if library == OURS else ((library,), "")
    plan = Plan(((Candidate(case, library, topology),),), peers=peers, budget=budget)
    launcher = Launcher(OURS) if library == OURS else find_launcher(library)
    rows = [event["row"] for event in launch(plan, ranks, launcher=launcher) if event["kind"] == "row"]
    if not rows:
        raise LaunchError(f"{library} could not be measured")
    return [microseconds / 1e6 for microseconds in rows[0]["rounds_us"]]


@app.command(cls=Command)
def main(
    sizes: Annotated[str, typer.Option(help="bytes of the allreduce")] = "8,64K,1M",
    ranks: Annotated[int, typer.Option(min=1, help="processes of each job")] = 2,
    peers: Annotated[str, typer.Option(help="openmpi, mpich, impi; 'none'")] = "openmpi,impi",
    rounds: Annotated[int, typer.Option(min=1, help="how often each is started")] = 3,
    neighbours: Annotated[
        int, typer.Option(metavar="K", min=0, help="busy processes (nice 19) instead of a second job")
    ] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="shorter turns: to see that it works")] = False,
    json: Json = None,
) -> None:
    """Measure how much slower a job becomes while another one, or a busy process, runs on the same cores."""
    with refusing():
        wanted = parse_sizes(sizes)
        libraries = (OURS, *(chosen(peers, MPIS, "peer") if peers != "none" else ()))
        outputs.check(None, json)
    found: list[Factor] = []
    for library in libraries:
        if library != OURS and not find_launcher(library).program:
            typer.echo(f"without {library}: {find_launcher(library).note}", err=True)
            continue
        for size in wanted:
            # long enough that both jobs overlap, whichever starts first
            budget = Budget(0.003, 8, 8, 0.1) if quick else Budget(0.03, 40, 40, 1.2)
            budget = budget if quick else budget.beside(neighbours)
            found.append(factor_of(library, size, ranks, rounds, budget, neighbours))
            if json != outputs.STDOUT:
                typer.echo(_line(found[-1], neighbours))
    outputs.write_json(json, SCHEMA, _document(found, ranks, neighbours))


def _line(one: Factor, neighbours: int) -> str:
    name = f"{NAMES.get(one.library, one.library)}, {format_size(one.bytes)}"
    alone, together = (f"{format_time(seconds):>8}" for seconds in (one.alone, one.together))
    beside = "another" if not neighbours else f"{neighbours} busy process{'es' * (neighbours > 1)}"
    verdict = "  TOO SLOW" if one.factor > NEIGHBOUR else "  met"
    goal = f" (goal <= {NEIGHBOUR:g}x){verdict}" if neighbours and one.library == OURS else ""
    return f"{name:<24} alone {alone}, beside {beside} {together}: {one.factor:.2f}x{goal}"


def _document(found: Sequence[Factor], ranks: int, neighbours: int) -> dict[str, object]:
    return {"ranks": ranks, "neighbours": neighbours, "rows": [{**asdict(one), "factor": one.factor} for one in found]}


if __name__ == "__main__":
    app(prog_name=f"python -m {__package__}.jobs")
