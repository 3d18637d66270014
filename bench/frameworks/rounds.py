"""Rounds in which every contender runs once, and what is shown of them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

Contenders = Mapping[str, Callable[[], object]]
WARM_UP = 2


def measured(
    comm: Any, contenders: Contenders, rounds: int, before: Contenders | None = None
) -> dict[str, list[float]]:
    """The slowest rank's seconds in each round, by contender; collective.

    ``before``: what a contender does before its time begins.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(WARM_UP + rounds):
        for name, run in contenders.items():
            if before is not None:
                before[name]()
            comm.barrier()
            start = perf_counter()
            run()
            mine = np.array([perf_counter() - start])
            seconds[name].append(float(comm.allreduce(mine, op="max")[0]))
    return {name: times[WARM_UP:] for name, times in seconds.items()}


def median_ratio(times: Sequence[float], base: Sequence[float]) -> float:
    """The median over the rounds of times over base."""
    return median(a / b for a, b in zip(times, base, strict=True))


def free_port() -> int:
    """A TCP port of this host that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
