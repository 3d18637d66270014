"""Peers are watched even if the kernel or a sandbox refuses pidfd_open, or waits are set never to sleep."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import Job, refuse

from comm.host.test_peer_death import SPINNING, YIELDING, call_forever, lose
from pycollective import Communicator, PeerLostError, TimeoutError

_PIDFD_OPEN = 434  # on every architecture


def no_such_call() -> None:
    """An old kernel."""
    ctypes.CDLL(None).prctl(15, b"a) Z (b", 0, 0, 0)  # PR_SET_NAME: /proc shows any name in parentheses
    refuse(_PIDFD_OPEN, errno.ENOSYS)
    with pytest.raises(OSError):
        os.pidfd_open(os.getpid())


def not_permitted() -> None:
    """A container whose filter allows fewer calls than the kernel."""
    refuse(_PIDFD_OPEN, errno.EPERM)


needs_seccomp = pytest.mark.skipif(
    not Path("/proc/sys/kernel/seccomp").exists(), reason="the kernel has no seccomp filters"
)


@needs_seccomp
@pytest.mark.parametrize("first", [no_such_call, not_permitted])
def test_a_killed_rank_is_named_within_a_second(first: Any) -> None:
    with Job(3, call_forever, "allreduce", "direct", 1000, first=first) as job:
        lose(job, 1, "busy")


def with_threads(comm: Communicator, link: Connection) -> None:
    """The first thread of rank 1 ends, which leaves a zombie; its other threads continue until the test kills them."""
    x = np.ones(10)

    def calls() -> None:
        link.send("alone")
        for _ in range(50):
            comm.allreduce(x)
            time.sleep(0.01)
        link.send("lives")
        time.sleep(60)

    if comm.rank == 1:
        threading.Thread(target=calls).start()
        ctypes.CDLL(None).pthread_exit(None)
    for _ in range(50):
        comm.allreduce(x)
    link.send("it is alive")
    comm.allreduce(x)


@pytest.mark.parametrize("first", [None, pytest.param(no_such_call, marks=needs_seccomp)])
def test_a_zombie_counts_as_ended_once_its_threads_have_ended(first: Any) -> None:
    with Job(2, with_threads, first=first) as job:
        assert job.hear(1) == "alone"
        assert job.hear(1) == "lives", job.outcomes()
        assert job.hear(0) == "it is alive", job.outcomes()[0].trace
        at = time.monotonic()
        os.kill(job.pid[1], signal.SIGKILL)
        outcome = job.outcomes()[0]
        assert isinstance(outcome.error, PeerLostError), outcome.trace
        assert outcome.at - at < 1


def never_sleeps(comm: Communicator, link: Connection) -> None:
    """It keeps its deadline and handles Ctrl-C, and so does the engine."""
    from pycollective.engine import Engine, Item

    engine = Engine(comm.dup())
    parts = [comm.dup(), comm.dup()]
    if comm.rank:
        link.recv()
        return
    with pytest.raises(TimeoutError, match="by rank 1"):
        parts[0].barrier(timeout=0.3)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        parts[1].barrier()
    timer.join()
    work = engine.submit([Item("allreduce", "a", np.ones(3))])[0]
    with pytest.raises(TimeoutError, match="can be waited for again"):
        work.wait(0.3)
    link.send("kill it")
    with pytest.raises(PeerLostError):
        work.wait()


@pytest.mark.parametrize("env", [SPINNING, YIELDING], ids=["spins", "yields"])
def test_a_wait_that_never_sleeps_keeps_its_deadline(env: dict[str, str]) -> None:
    with Job(2, never_sleeps, env=env) as job:
        assert job.hear(0, 15) == "kill it", job.outcomes()[0].trace
        job.kill(1)
        outcome = job.outcomes(15)[0]
        assert outcome.error is None, outcome.trace
