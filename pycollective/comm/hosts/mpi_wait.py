"""Waiting for MPI under a deadline, and what its errors mean.

MPI waits for ever. So nothing here blocks inside of it: requests are polled. A request that is given up cannot be taken
back; its arrays are kept, and the process ends without MPI_Finalize, which would wait for whoever is missing.

A process that dies ends the job, unless it was started with `mpirun --with-ft mpi` (Open MPI 5 and later): then MPI
says who is gone. "User Level Failure Mitigation", https://docs.open-mpi.org/en/v5.0.x/features/ulfm.html
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
"""How long to poll without sleep: large messages move while somebody polls; and the sleep between polls after it."""
GRACE = 2.0
"""Seconds that a process with abandoned requests waits before it ends, and with it the job: others may have a word."""
FINALIZE = 5.0
"""Seconds that MPI_Finalize gets after a rank was lost, which Open MPI does not always survive."""
HEARSAY = 2.0
"""Seconds within which MPI tells all ranks who is gone."""
_abandoned: list[object] = []
_kept: list[object] = []


def until(done: Callable[[], bool], seconds: float, eager: float = YIELD_SECONDS) -> bool:
    """Call `done` until it says yes.

    Args:
        done: also gives MPI its chance to get on.
        seconds: at most.
        eager: seconds without sleep at the start.

    Returns:
        False: it did not say yes in time.
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
    """Carry out a nonblocking call to its end.

    Args:
        comm: an mpi4py communicator.
        start: makes the call on it, and returns its request.
        seconds: until it is given up.
        what: the call, for the error.
        watch: called now and then meanwhile; what it raises ends the waiting.

    Raises:
        TimeoutError: not completed in time. PeerLostError: MPI names who is gone. CommunicatorError: other errors.
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
    """Leave it to itself, with the arrays that it holds: somebody is missing, whom MPI_Finalize would wait for."""
    _abandoned.append(request)


def check_peers(comm: Any, what: str) -> None:
    """Raise PeerLostError if MPI knows that a rank of an mpi4py communicator is gone; `what` needs it."""
    lost = _lost(comm)
    if lost:
        from mpi4py import MPI

        _kept.append(comm)
        with contextlib.suppress(MPI.Exception):
            comm.Revoke()  # nobody shall wait for this rank
        raise PeerLostError(f"{what}: rank {lost[0]} is gone (its process has ended)", lost[0])


def shrink(comm: Any, seconds: float) -> Any:
    """Collective over the ranks of an mpi4py communicator that still live: a communicator of theirs.

    MPI's call cannot be polled once the communicator is revoked, so a thread waits in it.

    Raises:
        CommunicatorError: MPI knows of no loss, or a rank that lives did not come in time.
    """
    from mpi4py import MPI

    if not until(lambda: MPI.COMM_SELF.Iprobe() or bool(_lost(comm)), min(HEARSAY, seconds)):
        raise CommunicatorError(
            "shrink() between hosts needs an MPI that tells which ranks are gone, and it tells of none: start the job "
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
        raise CommunicatorError(f"not all ranks that live called shrink() within {seconds:g} s")
    return made[0]


def _lost(comm: Any) -> list[int]:
    try:
        failed = comm.Get_failed()
        return [int(rank) for rank in failed.Translate_ranks(None, comm.Get_group())] if failed.Get_size() else []
    except (AttributeError, NotImplementedError, RuntimeError):  # of an MPI without that
        return []


def fault_of(comm: Any, error: Exception, what: str) -> Error:
    """What an exception of mpi4py means to us."""
    from mpi4py import MPI

    if not isinstance(error, MPI.Exception):
        return CommunicatorError(f"{what}: {error}")
    # Who is gone others may have learnt, and told by revoking, before this rank; the probe lets MPI get on.
    until(lambda: MPI.COMM_SELF.Iprobe() or bool(_lost(comm)), HEARSAY)
    try:
        check_peers(comm, what)
    except PeerLostError as lost:
        return lost
    return CommunicatorError(f"{what}: MPI says: {error}")


@functools.cache
def leave_at_exit() -> None:
    """Have the process end itself, if it has abandoned requests by then: after all that is registered later."""
    atexit.register(_leave)


def _leave() -> None:
    from mpi4py import MPI

    if not (_abandoned or _kept) or MPI.Is_finalized():
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if not _abandoned:  # somebody is lost, and MPI knows: mostly it finds its end
        with open(os.devnull, "w") as nowhere:
            faulthandler.dump_traceback_later(FINALIZE, exit=True, file=nowhere)
            MPI.Finalize()
            faulthandler.cancel_dump_traceback_later()
        return
    time.sleep(GRACE)
    os.write(2, b"pycollective: a call between hosts was given up, so this process ends without MPI_Finalize\n")
    os._exit(1)
