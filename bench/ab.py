"""``python -m bench.ab BEFORE AFTER``: two installed versions of the package, compared call by call.

BEFORE and AFTER are Python interpreters (``.venv/bin/python`` of two clones). Each version runs as a job of its own;
both jobs are alive at the same time and take turns at the same case in the order A B B A, so that a machine which slows
down slows both. Jobs are restarted several times, because where the kernel places a process's memory decides much.
A ratio above 1 means that AFTER is slower. How far one version differs from itself is measured in the same way, from
the same turns: a difference within that spread is none.
"""

from __future__ import annotations

import json as json_text
import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from pycollective.cli import outputs
from pycollective.cli.commands import Command, refusing
from pycollective.cli.options import Json
from pycollective.cli.units import format_time

from .measurement.stats import Ratio, paired_ratio
from .options import chosen, new_app
from .speed import groups_for
from .workload.cases import BARRIER, MEASURED, case_of
from .workload.plan import OURS

__all__ = ["Case", "Row", "compare", "rows_of", "speed_table_cases"]

SCHEMA = "pycollective-ab/1"
WORKER = Path(__file__).parent / "ranks" / "ab_worker.py"
LIMIT = 1.03
"""A slowdown up to this counts as none."""
_SMALL, _SMALL_BLOCK = 16384, 100
"""Up to so many bytes, so many calls are timed together."""
_MOST_REPETITIONS = 2000

app = new_app()


@dataclass(frozen=True)
class Case:
    """``topology``: "default" leaves the choice to the library."""

    collective: str
    kind: str
    bytes: int
    topology: str = "default"
    in_place: bool = False

    @property
    def block(self) -> int:
        """Calls that are timed together."""
        return _SMALL_BLOCK if self.bytes <= _SMALL else 1


@dataclass(frozen=True)
class Row:
    """A case, measured.

    Attributes:
        before, after: median seconds of a call.
        ratio: after / before, in pairs of neighbouring turns.
        itself: the same of each version against its own neighbouring turn.
        slower: whether AFTER is slower by more than LIMIT and by more than one version differs from itself.
    """

    case: Case
    before: float
    after: float
    ratio: Ratio
    itself: Ratio
    slower: bool


class Job:
    """The ranks of one version, each a process that waits for its next turn."""

    def __init__(self, python: str, ranks: int, memory: dict[str, int]) -> None:
        shared = {"PYCOLLECTIVE_SIZE": str(ranks), "PYCOLLECTIVE_LOCAL_SIZE": str(ranks),
                  "PYCOLLECTIVE_RENDEZVOUS": secrets.token_hex(16), "OMP_NUM_THREADS": "1"}  # fmt: skip
        self._ranks = []
        for rank in range(ranks):
            own = {"PYCOLLECTIVE_RANK": str(rank), "PYCOLLECTIVE_LOCAL_RANK": str(rank)}
            command = [python, "-I", str(WORKER)]
            pipe = subprocess.PIPE
            self._ranks.append(
                subprocess.Popen(command, env=os.environ | shared | own, stdin=pipe, stdout=pipe, text=True)
            )
        self.package = self._ask(memory)

    def turn(self, case: Case, repetitions: int, seed: int) -> float:
        """Median seconds of a call."""
        like = case_of(case.collective, case.bytes, len(self._ranks))
        counts = like.send_count, like.recv_count
        turn = {**asdict(case), "counts": counts, "block": case.block, "repetitions": repetitions, "seed": seed}
        seconds: list[float] = self._ask(turn)
        return median(seconds)

    def close(self) -> None:
        for process in self._ranks:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._ranks:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()

    def _ask(self, message: Any) -> Any:
        line = json_text.dumps(message) + "\n"
        for process in self._ranks:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()
        answers = [process.stdout.readline() for process in self._ranks if process.stdout is not None]
        if not all(answers):
            raise RuntimeError("a rank has ended; its error is above")
        return json_text.loads(answers[0])


def compare(
    before: str, after: str, cases: Sequence[Case], ranks: int, generations: int, rounds: int, budget: float
) -> list[Row]:
    """Measure the cases.

    Args:
        before, after: Python interpreters.
        generations: how many times the jobs are started.
        rounds: turns A B B A of each case in a generation.
        budget: seconds of a turn, about.
    """
    memory = {kind: max(c.bytes for c in cases if c.kind == kind) for kind in dict.fromkeys(c.kind for c in cases)}
    times: dict[Case, tuple[list[float], list[float]]] = {case: ([], []) for case in cases}
    for generation in range(generations):
        with ExitStack() as stack:
            pair = [stack.enter_context(closing(Job(python, ranks, memory))) for python in (before, after)]
            for case in cases:
                first = max(1e-7, *(job.turn(case, 3, 0) for job in pair))
                repetitions = int(min(max(3, budget / first / case.block), _MOST_REPETITIONS))
                for number in range(2 * rounds):
                    seed = generation * 1000 + number
                    for which in (0, 1) if number % 2 == 0 else (1, 0):
                        times[case][which].append(pair[which].turn(case, repetitions, seed))
    return rows_of(times)


def rows_of(times: dict[Case, tuple[list[float], list[float]]]) -> list[Row]:
    """`times[case]`: seconds of BEFORE's and of AFTER's turns, in the order A B B A."""
    rows = []
    for case, (before, after) in times.items():
        ratio = paired_ratio(before, after)
        # The second of a pair against the first: neither version always comes first.
        itself = paired_ratio(before[::2] + after[::2], before[1::2] + after[1::2])
        slower = ratio.median > LIMIT and ratio.median > max(itself.high, 1 / itself.low)
        rows.append(Row(case, median(before), median(after), ratio, itself, slower))
    return rows


def speed_table_cases(ranks: int) -> list[Case]:
    """Ours in the speed table (bench.speed) on so many ranks, except those of other types than float32."""
    ours = [one for group in groups_for(ranks) for one in group if one.library == OURS and one.case.dtype == "float32"]
    cases = [Case(one.case.collective, one.path, one.case.nbytes, one.topology, one.in_place) for one in ours]
    return list(dict.fromkeys(cases))


def _table(rows: Sequence[Row]) -> str:
    columns = f"{'collective':<17} {'kind':<17} {'bytes':<10} {'before':<10} {'after':<10}"
    lines = [f"{columns} after/before          one version"]
    for row in rows:
        c, r, s = row.case, row.ratio, row.itself
        times = f"{format_time(row.before):<10} {format_time(row.after):<10}"
        ratio = f"{r.median:.3f} ({r.low:.3f} to {r.high:.3f}) {s.low:.3f} to {s.high:.3f}"
        verdict = "  SLOWER" if row.slower else ""
        name = c.collective if c.topology == "default" else f"{c.collective}, {c.topology}"
        kind = f"{c.kind}{', in place' * c.in_place}"
        lines.append(f"{name:<17} {kind:<17} {c.bytes:<10} {times} {ratio}{verdict}")
    return "\n".join(lines)


def _cases(collectives: str, kinds: str, sizes: str) -> list[Case]:
    """ValueError where a collective is unknown or a size is no number."""
    named, numbers = chosen(collectives, MEASURED, "collective"), [int(size) for size in sizes.split(",")]
    first = (kinds.split(",")[0], numbers[0])
    cases = [Case(collective, kind, nbytes) for collective in named for kind in kinds.split(",") for nbytes in numbers]
    return [case for case in cases if case.collective != BARRIER or (case.kind, case.bytes) == first]


@app.command(cls=Command)
def main(
    before: Annotated[str, typer.Argument(help="Python interpreter of the version to compare with")],
    after: Annotated[str, typer.Argument(help="Python interpreter of the new version")],
    collectives: Annotated[str, typer.Option(help="which, separated by commas")] = ",".join(MEASURED),
    sizes: Annotated[str, typer.Option(help="bytes, separated by commas")] = "8,65536,1048576,67108864",
    kinds: Annotated[str, typer.Option(help="plain, windows, shared, torch")] = "plain,windows",
    ranks: Annotated[int, typer.Option(help="processes of each job")] = 2,
    speed_table: Annotated[
        bool, typer.Option("--speed-table", help="instead of these, what bench.speed measures on so many ranks")
    ] = False,
    generations: Annotated[int, typer.Option(help="how many times the jobs are started")] = 5,
    rounds: Annotated[int, typer.Option(help="turns A B B A of a case in each")] = 4,
    budget: Annotated[float, typer.Option(help="seconds of a turn, about")] = 0.02,
    json: Json = None,
) -> None:
    """Compare two installed versions; exit code 1 where the second is slower."""
    with refusing():
        cases = speed_table_cases(ranks) if speed_table else _cases(collectives, kinds, sizes)
        if not cases:
            raise ValueError(f"the speed table has no rows of {ranks} ranks")
        for python in (before, after):
            if shutil.which(python) is None:
                raise FileNotFoundError(f"{python} is not a program; name the Python interpreter of an installation")
        outputs.check(None, json)
    rows = compare(before, after, cases, ranks, generations, rounds, budget)
    if json != outputs.STDOUT:
        typer.echo(_table(rows))
    outputs.write_json(json, SCHEMA, {"ranks": ranks, "rows": [asdict(row) for row in rows]})
    raise typer.Exit(any(row.slower for row in rows))


if __name__ == "__main__":
    app()
