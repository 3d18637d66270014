"""Repeatedly kills or stops ranks at random moments: `python -m faults.trials --count 300`.

In every trial all survivors raise and name the rank, after a kill as soon as they look, after a stop at their
deadline; they continue without it; a stopped rank that resumes raises, too; nothing remains in /dev/shm.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import c10d
import hvd
from processes import Job

from faults.work import DEADLINE, Raised, Result, of_c10d, of_communicator, of_hvd, tell

KINDS = ("collective", "nonblocking", "messages", "engine", "hvd", "c10d")
_WEIGHTS = (25, 15, 10, 20, 15, 15)
_SLACK = 20.0
"""Seconds after which a silent rank counts as hanging."""
_ERRORS = {"kill": "PeerLostError", "stop": "TimeoutError"}
_LIMITS = {"kill": 1.0, "stop": DEADLINE + 1.0}


@dataclass(frozen=True)
class Trial:
    """One trial; the number determines everything except the moment."""

    number: int
    kind: str
    fault: str
    n: int
    victim: int

    def __str__(self) -> str:
        return f"trial {self.number}: {self.fault} rank {self.victim} of {self.n}, {self.kind}"


def trial(number: int, torch: bool = True) -> Trial:
    """The trial of a number; without torch one that does not need it."""
    choice = random.Random(number)
    kind = choice.choices(KINDS, _WEIGHTS)[0]
    if not torch and kind in ("hvd", "c10d"):
        kind = "engine"
    n = choice.choice((2, 3, 4))
    return Trial(number, kind, ("kill", "stop")[number % 2], n, choice.randrange(n))


@contextlib.contextmanager
def _job(one: Trial) -> Iterator[Job]:
    env = {"PYCOLLECTIVE_TIMEOUT": str(DEADLINE)}
    if one.kind == "hvd":
        with hvd.job(one.n, of_hvd, one.number, env=env) as job:
            yield job
    elif one.kind == "c10d":
        with c10d.job(one.n, of_c10d, one.number, seconds=DEADLINE) as job:
            yield job
    else:
        with Job(one.n, of_communicator, one.kind, one.number, env=env) as job:
            yield job


class _TooEarly(AssertionError):
    """A rank has raised before all were at work: on a busy machine one may be late for its first call."""


def run(one: Trial, attempts: int = 3) -> Result:
    """Run a trial. Leftovers raise AssertionError, like the end of a job."""
    for _ in range(attempts - 1):
        with contextlib.suppress(_TooEarly):
            return _run(one)
    return _run(one)


def _run(one: Trial) -> Result:
    result = Result(one)
    survivors = [rank for rank in range(one.n) if rank != one.victim]
    with _job(one) as job:
        for rank in range(one.n):
            answer = job.hear(rank, 30)
            if answer != "busy":
                raise _TooEarly(f"{one}: rank {rank} raised too early: {answer}")
        time.sleep(random.random() * 0.15)
        at = job.kill(one.victim, signal.SIGKILL if one.fault == "kill" else signal.SIGSTOP)
        for rank in survivors:
            _judge(result, rank, job.hear(rank, DEADLINE + _SLACK), at)
        for rank in survivors:
            job.link[rank].send("survive")
        if one.fault == "stop":
            time.sleep(random.random() * 0.8)  # the others shrink, or have
            job.kill(one.victim, signal.SIGCONT)
            late = job.hear(one.victim, DEADLINE + _SLACK)
            if not isinstance(late, tuple):
                result.problems.append(f"the stopped rank continues and does not raise: {late}")
            elif Raised(*late).again < 0:
                result.problems.append(f"the stopped rank raised, and then did not: {late}")
            job.link[one.victim].send("end")
        for rank in survivors:
            answer = job.hear(rank, _SLACK)
            if answer != "survived":
                result.problems.append(f"rank {rank} does not continue: {answer}")
        job.outcomes(_SLACK)
    return result


def _judge(result: Result, rank: int, answer: object, at: float) -> None:
    one = result.trial
    if not isinstance(answer, tuple):
        result.problems.append(f"rank {rank} reported {answer}")
        return
    raised = Raised(*answer)
    result.seconds[rank] = raised.at - at
    expected = {_ERRORS[one.fault], "HorovodInternalError"}
    if one.kind == "c10d" and one.fault == "stop" and re.search("has not (joined|arrived)", raised.text):
        expected.add("BootstrapError")  # while the group creates its second communicator
    if not expected & set(raised.kinds):
        result.problems.append(f"rank {rank} raised {raised.kinds[0]}: {raised.text}")
    if not re.search(rf"\brank {one.victim}\b", raised.text):
        result.problems.append(f"rank {rank} does not name the rank: {raised.text}")
    soon = DEADLINE + 1 if one.kind == "c10d" and one.fault == "stop" else 1  # a late message does not end a group
    if not 0 <= raised.again < soon:
        result.problems.append(f"rank {rank} raised, and its next call {raised.again:.1f} s later: {raised.text}")


def _outcome(one: Trial) -> Result:
    try:
        return run(one)
    except AssertionError as error:
        return Result(one, problems=[str(error)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--no-torch", action="store_true")
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.count)
    results = tell((_outcome(trial(number, not options.no_torch)) for number in numbers), _LIMITS)
    wrong = [result for result in results if result.problems]
    print(f"{len(results)} trials, {len(wrong)} with problems")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
