"""How a rank waits: it rests after a while, and does not spin on a core that it shares."""

from __future__ import annotations

import os
import resource
import time
from multiprocessing.connection import Connection
from unittest.mock import Mock, call

import numpy as np
from processes import Job, run

from pycollective import local_world
from pycollective.comm.communicator import Communicator
from pycollective.comm.host.core_team import set_patience
from pycollective.comm.host.cores import are_enough, cpu_quota, usable_cores

LATE = 0.5
"""Seconds by which a peer comes late."""


def late(comm: Communicator, link: Connection | None) -> list[float]:
    """Seconds of CPU that rank 0 uses while it waits: in a blocking call, for a message, for a nonblocking call."""
    x = np.ones(3)
    calls = [
        lambda: comm.allreduce(x),
        lambda: comm.recv(x, 1) if comm.rank == 0 else comm.send(x, 0),
        lambda: comm.iallreduce(x).wait(),
    ]
    used = []
    for make in calls:
        make()  # whatever only a first call does
        comm.barrier()
        if comm.rank == 1:
            time.sleep(LATE)
        before = time.process_time()
        make()
        used.append(time.process_time() - before)
    return used


def test_a_rank_that_waits_rests() -> None:
    used = run(2, late)[0]
    assert max(used) < 0.05, f"{used} s of CPU in waits of {LATE} s"


def naps(comm: Communicator, link: Connection | None) -> int:
    """How often rank 0 sleeps while it waits for 0.2 s, if it waits as ranks with a core each do."""
    set_patience(comm.backend.team, True)  # type: ignore[attr-defined]
    comm.barrier()
    if comm.rank == 1:
        time.sleep(0.2)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw  # does not count yields
    comm.allreduce(np.ones(3))
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before


def test_how_long_a_blocking_call_stays_awake_is_a_setting() -> None:
    assert run(2, naps)[0] > 8
    assert run(2, naps, env={"PYCOLLECTIVE_AWAKE_US": "10e6"})[0] < 5


def test_ranks_that_share_cores_only_yield() -> None:
    team = Mock()
    set_patience(team, True)
    set_patience(team, False)
    assert team.set_patience.call_args_list == [call(2, 50, 5000), call(0, 50, 0)]


def share_a_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def derived(comm: Communicator, link: Connection | None) -> list[bool]:
    """Whether ranks count as having a core each: of a communicator and of those made from it, one of a single rank."""
    smaller = comm.shrink()
    alone = smaller.split(smaller.rank)
    found = [one.backend.own_cores for one in (comm, smaller, smaller.dup(), alone)]  # type: ignore[attr-defined]
    assert ("no rank spins" in alone.explain("allreduce", 8).waiting) != found[-1]
    return found


def test_communicators_know_whether_their_ranks_share_a_core() -> None:
    with Job(2, derived, first=share_a_core) as job:
        assert job.results() == [[False] * 4] * 2
    enough = are_enough([usable_cores()] * 2, cpu_quota())
    assert run(2, derived) == [[enough] * 4] * 2


def test_threads_count_as_ranks() -> None:
    cores = len(usable_cores())
    for size, enough in ((cores + 1, False), (1, are_enough([usable_cores()], cpu_quota()))):
        found = local_world(size).run(lambda comm: comm.backend.own_cores)  # type: ignore[attr-defined]
        assert found == [enough] * size
