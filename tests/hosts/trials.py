"""Faults of ranks and hosts at random moments: `python -m hosts.trials --count 200`.

In every trial each survivor raises, names what was lost, and its next call raises at once. The side with more than
half of the ranks (a tie: rank 0's side) shrinks the communicator and continues; shrink() raises on the other side, and
on a host that was frozen and returns.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.work import Raised, Result, tell
from processes import IMPORTABLE

from hosts.forked import start_ranks
from hosts.simulated import Hosts
from launch import OPEN_MPI_SETTINGS, find_mpirun
from pycollective.bench.namespaces import why_not

FAULTS = ("kill", "cut", "freeze", "gone", "again")
"""A rank is killed; hosts are cut off from the others; a host's processes are stopped; half of the hosts vanish; a rank
is killed, and another one while the survivors shrink the communicator."""
LAYOUTS = ((2, 2), (1, 2), (1, 1, 1), (2, 1, 1), (1, 1, 1, 1), (2, 2, 1))
"""Ranks on each host: three or more, so that the loss of one rank never leaves a tie."""
KINDS = ("collective", "nonblocking", "messages", "engine", "groups", "torch")
LIMITS = {"kill": 1.0, "cut": 2.5, "freeze": 2.5, "gone": 2.5, "again": 1.0}
"""Seconds until every survivor has named what was lost; "again": until they continue without the second rank."""
_DEADLINE = 25.0
"""Timeout of calls: far above the limits, so that a deadline does not replace the detection of a loss."""
_SLACK = 45.0
"""Seconds after which a silent rank counts as hanging."""


@dataclass(frozen=True)
class Trial:
    """One trial; the number determines everything except the moment. `lost`: ranks (kill, again), or hosts."""

    number: int
    fault: str
    layout: tuple[int, ...]
    kind: str
    lost: tuple[int, ...]

    def __str__(self) -> str:
        what = "rank" if self.kills else "host"
        return f"trial {self.number}: {self.fault} {what} {self.lost} of {self.layout}, {self.kind}"

    @property
    def kills(self) -> bool:
        """Whether ranks are lost, and not hosts."""
        return self.fault in ("kill", "again")

    @property
    def host_of(self) -> list[int]:
        """The host of each rank."""
        return [host for host, count in enumerate(self.layout) for _ in range(count)]

    @property
    def lost_ranks(self) -> set[int]:
        return {rank for rank, host in enumerate(self.host_of) if (rank if self.kills else host) in self.lost}

    @property
    def survivors(self) -> set[int]:
        """The ranks that run on, in a cut on both sides."""
        everyone = set(range(len(self.host_of)))
        return everyone if self.fault == "cut" else everyone - self.lost_ranks

    def side_of(self, rank: int) -> set[int]:
        """The ranks that a survivor can reach, with itself."""
        rest = set(range(len(self.host_of))) - self.lost_ranks
        return rest if rank in rest else self.lost_ranks

    def may_shrink(self, rank: int) -> bool:
        """Whether a survivor's side may continue."""
        side, size = self.side_of(rank), len(self.host_of)
        return 2 * len(side) > size or (2 * len(side) == size and 0 in side)


def late(result: Result) -> list[int]:
    """The survivors that raised after the limit."""
    return [rank for rank, seconds in result.seconds.items() if seconds > LIMITS[result.trial.fault]]


def trial(number: int) -> Trial:
    """The trial of a number; five consecutive ones have all faults. Without torch, those with it use the engine."""
    choice = random.Random(number)
    fault, layout = FAULTS[number % len(FAULTS)], choice.choice(LAYOUTS)
    hosts = range(len(layout))
    if fault in ("kill", "again"):
        lost = choice.sample(range(sum(layout)), 1 if fault == "kill" else 2)
    else:
        most = len(layout) // 2
        lost = choice.sample(hosts, {"cut": choice.randint(1, most), "freeze": 1, "gone": most}[fault])
    kind = choice.choice(KINDS)
    if kind == "torch" and importlib.util.find_spec("torch") is None:
        kind = "engine"
    return Trial(number, fault, layout, kind, tuple(lost if fault == "again" else sorted(lost)))


Start = Callable[[Hosts, Trial, Path, dict[str, str]], None]
"""(hosts, trial, folder for reports and a log, variables): starts the ranks. The last host has none."""


def by_fork(hosts: Hosts, one: Trial, folder: Path, env: dict[str, str]) -> None:
    """With the variables of `pycollective run -H`, and no launcher that could tell anything."""
    words = [str(folder), one.kind, str(one.number)]
    start_ranks(hosts, one.layout, "hosts.survivor", words, folder / "log", lambda _rank: env)


def by_mpirun(hosts: Hosts, one: Trial, folder: Path, env: dict[str, str]) -> None:
    """From the host without ranks: no fault ends the launcher."""
    program = find_mpirun()
    assert program is not None, "needs mpi4py and an mpirun"
    script = [sys.executable, str(Path(__file__).with_name("survivor.py")), str(folder), one.kind, str(one.number)]
    words = hosts.mpirun(program, [*one.layout, 0], ["--with-ft", "mpi", *script], start=hosts.names[-1])
    with (folder / "log").open("w") as file:
        subprocess.Popen(
            words, env={**os.environ, **OPEN_MPI_SETTINGS, **IMPORTABLE, **env},
            stdin=subprocess.DEVNULL, stdout=file, stderr=file,
        )  # fmt: skip


class _Reports:
    """What the ranks have written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, rank: int) -> list[Any]:
        path = self._folder / f"{rank}.report"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait(self, ranks: set[int], count: int, seconds: float) -> set[int]:
        """Until these ranks have written so much; returns those that have not."""
        end = time.monotonic() + seconds
        while (waiting := {rank for rank in ranks if len(self.of(rank)) < count}) and time.monotonic() < end:
            time.sleep(0.02)
        return waiting


_HELLO, _BUSY, _RAISED, _SURVIVED, _DONE = range(5)
"""A rank's reports, in this order; a rank that cannot shrink reports that in place of `_SURVIVED`."""


def run(one: Trial, start: Start = by_fork) -> Result:
    """Run a trial."""
    result = Result(one)
    settings = {"PYCOLLECTIVE_TIMEOUT": str(_DEADLINE), "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    with tempfile.TemporaryDirectory() as name, Hosts(len(one.layout) + 1) as hosts:
        folder = Path(name)
        start(hosts, one, folder, settings)
        _observe(one, hosts, _Reports(folder), result)
        if result.problems:
            result.problems.append((folder / "log").read_text()[-2000:])
    return result


def run_all(trials: Iterable[Trial], at_once: int, start: Start = by_fork) -> Iterator[Result]:
    """Run trials, several at the same time, since they mostly wait; the results in the order of the trials."""
    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(lambda one: run(one, start), trials)


def _observe(one: Trial, hosts: Hosts, reports: _Reports, result: Result) -> None:
    everyone = set(range(len(one.host_of)))
    if missing := reports.wait(everyone, _BUSY + 1, 40):
        result.problems.append(f"ranks {sorted(missing)} have not begun")
        return
    time.sleep(random.random() * 0.15)
    at = time.monotonic()
    _inflict(one, hosts, reports)
    reports.wait(one.survivors, _RAISED + 1, _SLACK)
    if one.fault == "again":
        time.sleep(random.random() * 0.1)
        at = time.monotonic()
        _kill(one.lost[1], one, hosts, reports)
    reports.wait({rank for rank in one.survivors if len(reports.of(rank)) > _RAISED}, _SURVIVED + 1, _SLACK)
    if one.fault == "freeze":
        hosts.resume(f"host{one.lost[0]}")
        reports.wait(one.lost_ranks, _SURVIVED + 1, _SLACK)
        for rank in one.lost_ranks:
            judge_expelled(one, rank, reports.of(rank), result)
    reports.wait({rank for rank in one.survivors if one.may_shrink(rank)}, _DONE + 1, 5)
    for rank in sorted(one.survivors):
        judge(one, rank, reports.of(rank), at, result)


def _inflict(one: Trial, hosts: Hosts, reports: _Reports) -> None:
    names = [f"host{host}" for host in one.lost]
    if one.kills:
        _kill(one.lost[0], one, hosts, reports)
    elif one.fault == "freeze":
        hosts.freeze(*names)
    else:
        hosts.cut(*names)
        for name in names if one.fault == "gone" else ():
            hosts.kill(name)  # nobody is told: its network was cut before


def _kill(rank: int, one: Trial, hosts: Hosts, reports: _Reports) -> None:
    hosts.kill(f"host{one.host_of[rank]}", reports.of(rank)[_HELLO]["pid"])


def judge(one: Trial, rank: int, reports: list[Any], at: float, result: Result) -> None:
    """Compare what a survivor reported with what is expected."""
    problem = result.problems.append
    if len(reports) <= _RAISED:
        problem(f"rank {rank} has not raised within {_SLACK:g} s")
        return
    raised = Raised(*reports[_RAISED])
    rest = reports[_SURVIVED:]
    made = next((each for each in rest if each != "survived"), {"at": at + _SLACK})
    result.seconds[rank] = (made.get("at", at + _SLACK) if one.fault == "again" else raised.at) - at
    expected = {"PeerLostError"} if one.kills else {"PeerLostError", "TimeoutError"}
    if one.kind == "torch":
        expected |= {"BootstrapError"}  # of a process group that is being made
    if not expected & set(raised.kinds):
        problem(f"rank {rank} raised {raised.kinds[0]}: {raised.text}")
    beyond = set(range(len(one.host_of))) - one.side_of(rank)
    if not _named(raised.text) & beyond:
        problem(f"rank {rank} names none of the ranks {sorted(beyond)} that it lost: {raised.text}")
    elif _named(raised.text) - beyond:
        problem(f"rank {rank} has lost the ranks {sorted(beyond)} and names others, too: {raised.text}")
    if not 0 <= raised.again < 1:
        problem(f"rank {rank} raised, and its next call {raised.again:.1f} s later: {raised.text}")
    continues = made.get("size") == len(one.side_of(rank))
    # Of ranks that are lost one after the other, the rest may be the larger side of those that survived the first.
    if not one.may_shrink(rank) and not (continues and one.fault == "again"):
        if "refused" not in made:
            problem(f"rank {rank} is on the smaller side, and shrink() did not raise: {rest}")
    elif not continues:
        problem(f"rank {rank} is one of {len(one.side_of(rank))} that continue, and reports {rest}")


def judge_expelled(one: Trial, rank: int, reports: list[Any], result: Result) -> None:
    """A rank of a host that was frozen and has returned; if all others may not continue, it is free to."""
    if not one.may_shrink(min(one.survivors)):
        return
    if len(reports) <= _SURVIVED:
        result.problems.append(f"rank {rank} was frozen, returned, and has not noticed: {reports[_RAISED:]}")
    elif "refused" not in reports[_SURVIVED]:
        result.problems.append(f"rank {rank} was frozen, returned, and continues: {reports[_SURVIVED:]}")


def _named(text: str) -> set[int]:
    """The ranks that an error names, by their numbers in the world."""
    text = re.sub(r"\brank \d+ \(world rank (\d+)\)", r"rank \1", text)  # of a communicator of some ranks
    lists = re.findall(r"\branks? (\d+(?:(?:, and |, | and | or )\d+)*)", text)
    return {int(number) for found in lists for number in re.findall(r"\d+", found)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--at-once", type=int, default=4, help="trials that run at the same time")
    parser.add_argument("--mpirun", action="store_true", help="start the ranks by Open MPI's mpirun")
    options = parser.parse_args()
    if reason := why_not():
        print(f"skipped: {reason}")
        return 0
    numbers = range(options.first, options.first + options.count)
    start = by_mpirun if options.mpirun else by_fork
    results = tell(run_all(map(trial, numbers), options.at_once, start), LIMITS)
    wrong = [result for result in results if result.problems or late(result)]
    print(f"{len(results)} trials, {len(wrong)} with problems or late")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
