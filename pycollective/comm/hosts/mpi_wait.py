"""Waiting for MPI with a deadline, and the meaning of its errors.

MPI waits indefinitely. So nothing here blocks inside MPI: requests are polled. An abandoned request cannot be
cancelled; its arrays are kept, and the process exits without MPI_Finalize, which would wait for the missing rank.

A dead process ends the job, unless it was started with `mpirun --with-ft mpi` (Open MPI 5 and later): then MPI
reports the lost ranks. "User Level Failure Mitigation", https://docs.open-mpi.org/en/v5.0.x/features/ulfm.html
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from pycollective.errors import CommunicatorError, Error, PeerLostError, TimeoutError

YIELD_SECONDS, NAP = 0.02, 50e-6
"""Seconds of polling without sleep, since large messages progress only while polled; then the sleep between polls."""
GRACE = 2.0
"""Seconds that a process with abandoned requests waits before its exit ends the job: other ranks may report errors."""
FINALIZE = 5.0
"""Seconds allowed for MPI_Finalize after a lost rank, which Open MPI does not always survive."""
HEARSAY = 2.0
"""Seconds within which MPI notifies all ranks of a loss."""
_abandoned: list[object] = []
_kept: list[object] = []


def until(done: Callable[[], bool], seconds: float, eager: float = YIELD_SECONDS) -> bool:
    """Call `done` until it returns True.

    Args:
        done: also lets MPI make progress.
        seconds: at most.
        eager: seconds without sleep at the start.

    Returns:
        False if it did not return True in time.
    """
    start = time.monotonic()
    while not done():
        passed = time.monotonic() - start
        if passed >= seconds:
            return False
        if passed < eager:
            os.sched_yield()
        else:
            time.sleep(NAP)
    return True


def finish(
    comm: Any, start: Callable[[], Any], seconds: float, what: str, watch: Callable[[], None] | None = None
) -> None:
    """Run a nonblocking call to completion.

    Args:
        comm: an mpi4py communicator.
        start: starts the call on it and returns the request.
        seconds: until it is abandoned.
        what: the call, for the error.
        watch: called periodically meanwhile; an error that it raises ends the wait.

    Raises:
        TimeoutError: not completed in time. PeerLostError: MPI reports a lost rank. CommunicatorError: other errors.
    """
    request: Any = None

    def done() -> bool:
        if watch is not None:
            watch()
        if request.Test():
            return True
        check_peers(comm, what)
        return False

    try:
        request = start()
        if not until(done, seconds):
            raise TimeoutError(
                f"{what} has not completed after {seconds:g} s: of the {comm.Get_size()} ranks on several hosts one "
                "does not take part"
            )
    except PeerLostError:
        _kept.append(request)
        raise
    except (Error, KeyboardInterrupt):
        abandon(request)
        raise
    except Exception as error:
        raise fault_of(comm, error, what) from error


def abandon(request: object) -> None:
    """Abandon a request and keep its arrays: a rank is missing, for which MPI_Finalize would wait."""
    _abandoned.append(request)


def check_peers(comm: Any, what: str) -> None:
    """Raise PeerLostError if MPI reports a lost rank in an mpi4py communicator; `what` needs it."""
    lost = _lost(comm)
    if lost:
        from mpi4py import MPI

        _kept.append(comm)
        with contextlib.suppress(MPI.Exception):
            comm.Revoke()  # so that no rank waits for this one
        raise PeerLostError(f"{what}: rank {lost[0]} is gone (its process has ended)", lost[0])


def shrink(comm: Any, seconds: float) -> Any:
    """Collective over the surviving ranks of an mpi4py communicator: a communicator of them.

    MPI's call cannot be polled once the communicator is revoked, so a thread waits in it.

    Raises:
        CommunicatorError: MPI reports no loss, or a survivor did not call in time.
    """
    from mpi4py import MPI

    if not until(lambda: MPI.COMM_SELF.Iprobe() or bool(_lost(comm)), min(HEARSAY, seconds)):
        raise CommunicatorError(
            "shrink() between hosts needs an MPI that reports lost ranks, and it reports none: start the job "
            "with `mpirun --with-ft mpi` (Open MPI 5 and later)"
        )
    with contextlib.suppress(MPI.Exception):
        comm.Revoke()
    made: list[Any] = []

    def work() -> None:
        with contextlib.suppress(MPI.Exception):
            made.append(comm.Shrink())

    thread = threading.Thread(target=work, name="pycollective shrink", daemon=True)
    thread.start()
    thread.join(seconds)
    if not made:
        abandon(thread)
        raise CommunicatorError(f"not all surviving ranks called shrink() within {seconds:g} s")
    return made[0]


def _lost(comm: Any) -> list[int]:
    try:
        failed = comm.Get_failed()
        return [int(rank) for rank in failed.Translate_ranks(None, comm.Get_group())] if failed.Get_size() else []
    except (AttributeError, NotImplementedError, RuntimeError):  # an MPI without ULFM
        return []


def fault_of(comm: Any, error: Exception, what: str) -> Error:
    """Our error for an exception of mpi4py."""
    from mpi4py import MPI

    if not isinstance(error, MPI.Exception):
        return CommunicatorError(f"{what}: {error}")
    # Other ranks may have detected the loss and revoked the communicator first; the probe makes MPI progress.
    until(lambda: MPI.COMM_SELF.Iprobe() or bool(_lost(comm)), HEARSAY)
    try:
        check_peers(comm, what)
    except PeerLostError as lost:
        return lost
    return CommunicatorError(f"{what}: MPI reports: {error}")


@functools.cache
def leave_at_exit() -> None:
    """Register an exit handler that ends a process with abandoned requests; it runs after those registered later."""
    atexit.register(_leave)


def _leave() -> None:
    from mpi4py import MPI

    if not (_abandoned or _kept) or MPI.Is_finalized():
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if not _abandoned:  # MPI knows of the loss: it mostly finishes
        with open(os.devnull, "w") as nowhere:
            faulthandler.dump_traceback_later(FINALIZE, exit=True, file=nowhere)
            MPI.Finalize()
            faulthandler.cancel_dump_traceback_later()
        return
    time.sleep(GRACE)
    os.write(2, b"pycollective: a call between hosts was abandoned, so this process exits without MPI_Finalize\n")
    os._exit(1)
