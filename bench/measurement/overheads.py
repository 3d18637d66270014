"""Times without a peer: compiling, a call's overhead, importing, and starting up.  All in seconds."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from statistics import median
from time import perf_counter
from typing import Any

from ..ranks.launch import find_launcher, same_path

__all__ = ["OVERHEADS", "call_overhead", "compile_time", "import_time", "init_time"]

_IMPORT = "from time import perf_counter as t; s = t(); import pycollective; print(t() - s)"
_CALL = """
from statistics import median
from timeit import repeat
import numpy, pycollective
comm, x, out = pycollective.init(), numpy.ones(1, "f4"), numpy.ones(1, "f4")
call = comm.allreduce
call(x, out)
print(median(repeat("call(x, out)", globals=globals(), number=20000, repeat=15)) / 20000)
"""
_START = "import numpy; from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"
_INIT = "import numpy; import pycollective; pycollective.init().barrier()"


def compile_time(ranks: int = 8) -> float:
    """The slowest allreduce or broadcast of any topology, compiled without caches in every placement; best of three."""
    schedule: Any = importlib.import_module("pycollective.schedule")

    def attempt(name: str, collective: str, placement: Any) -> None:
        program = schedule.trace(name, collective, ranks, 0 if collective == "broadcast" else None)
        schedule.compile_program(program, placement)

    wanted = product(schedule.describe(), ("allreduce", "broadcast"), schedule.Placement)
    attempts = [partial(attempt, row.name, name, place) for row, name, place in wanted if name in row.collectives]
    return max(min(_timed(each) for _ in range(3)) for each in attempts)


def _timed(function: Callable[[], object]) -> float:
    start = perf_counter()
    function()
    return perf_counter() - start


def call_overhead() -> float:
    """An allreduce of one element on a communicator of one rank: the pure overhead."""
    return float(_python(_CALL))


def import_time(repeats: int = 9) -> float:
    """``import pycollective`` in a fresh interpreter."""
    return median(float(_python(_IMPORT)) for _ in range(repeats))


def init_time(ranks: int = 4, repeats: int = 7) -> float:
    """The time that import, ``init()`` and a barrier add to an mpirun whose ranks do the same with mpi4py only.

    Both import NumPy, as all programs do.  Paired differences of the full commands, start to end.
    Raises RuntimeError without mpirun.
    """
    if not find_launcher().program:
        raise RuntimeError("there is no mpirun")
    pairs = [(_start(_START, ranks), _start(_INIT, ranks)) for _ in range(repeats)]
    return median(ours - bare for bare, ours in pairs)


def _start(code: str, ranks: int) -> float:
    launcher = find_launcher()
    command = launcher.command(ranks, [sys.executable, "-c", same_path() + code])
    environment = launcher.environment(ranks)
    return _timed(lambda: _run(command, environment))


def _python(code: str) -> str:
    return _run([sys.executable, "-c", same_path() + code], None)


def _run(command: Sequence[str], environment: dict[str, str] | None) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()


OVERHEADS: dict[str, Callable[[], float]] = {
    "compile": compile_time,
    "call": call_overhead,
    "import": import_time,
    "init": init_time,
}
