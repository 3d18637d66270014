"""The end of a process that MPI has started, after ranks were lost."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import os
import sys

SECONDS = 5.0
"""Allowed for MPI_Finalize after a fault: it waits for ranks that may never come."""
_broken = False


@functools.cache
def register() -> None:
    """Add an exit handler; it runs after those added later, which free the communicators."""
    atexit.register(_leave)


def note_fault() -> None:
    """A communicator between hosts was given up, or an error ends this process: others may not be in MPI_Finalize."""
    global _broken
    _broken = True


def _leave() -> None:
    mpi = sys.modules.get("mpi4py.MPI")
    if not _broken or mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with open(os.devnull, "w") as nowhere:
        faulthandler.dump_traceback_later(SECONDS, exit=True, file=nowhere)
        mpi.Finalize()
        faulthandler.cancel_dump_traceback_later()
