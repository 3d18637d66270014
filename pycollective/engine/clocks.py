"""Clocks of several hosts: how far each is ahead of rank 0's, found by sending messages back and forth.

An answer was written between question and receipt, so the middle of the two is when it was, up to half of the time that
both took; the quickest of several counts. D. L. Mills, "Internet Time Synchronization", 1991,
https://doi.org/10.1109/26.103043
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator

PROBES = 20
Reading = tuple[int, int]
"""(when, by how much the clock was ahead of rank 0's), in nanoseconds of this rank's clock."""


def now() -> int:
    """This rank's clock: nanoseconds since some moment, which differs between hosts."""
    return time.monotonic_ns()


def compare(comm: Communicator) -> Reading:
    """Collective: this rank's clock against rank 0's."""
    if comm.rank == 0:
        for rank in range(1, comm.size):
            for _ in range(PROBES):
                comm.recv(np.empty(1, np.int64), rank)
                comm.send(np.array([now()], np.int64), rank)
        return now(), 0
    tried = []
    for _ in range(PROBES):
        asked, answer = now(), np.empty(1, np.int64)
        comm.send(np.array([asked], np.int64), 0)
        comm.recv(answer, 0)
        heard = now()
        tried.append((heard - asked, (asked + heard) // 2 - int(answer[0])))
    return now(), min(tried)[1]


def of_rank_0(readings: Sequence[Reading], when: int) -> int:
    """What rank 0's clock showed at some time of this rank's, from readings in the order of time.

    Between the first and the last, clocks drift evenly.
    """
    (first, begin), (last, end) = readings[0], readings[-1]
    drift = (end - begin) * (when - first) // (last - first) if last > first else 0
    return when - begin - drift
