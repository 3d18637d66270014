"""Clocks of several hosts: how far each is ahead of rank 0's, measured with round trips.

An answer was written between request and receipt, so their midpoint is its time, with an error of at most half the
round trip; the fastest round trip is used. D. L. Mills, "Internet Time Synchronization", 1991,
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
    """This rank's clock: nanoseconds since an origin that differs between hosts."""
    return time.monotonic_ns()


def compare(comm: Communicator) -> Reading:
    """Collective: compare this rank's clock with rank 0's."""
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
        received = now()
        tried.append((received - asked, (asked + received) // 2 - int(answer[0])))
    return now(), min(tried)[1]


def of_rank_0(readings: Sequence[Reading], when: int) -> int:
    """The time of rank 0's clock at a time of this rank's, from readings in chronological order.

    Between readings, the drift is interpolated linearly.
    """
    (first, begin), (last, end) = readings[0], readings[-1]
    drift = (end - begin) * (when - first) // (last - first) if last > first else 0
    return when - begin - drift
