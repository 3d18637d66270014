"""NumPy arrays that the other ranks of a host can access where they are."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from pycollective import _core

_LOG = logging.getLogger("pycollective")


@contextlib.contextmanager
def shared_arrays() -> Iterator[None]:
    """Let NumPy store new arrays where the other ranks of the host can access them.

        with pc.shared_arrays():
            gradients = np.zeros(10_000_000, np.float32)
        comm.allreduce(gradients, out=gradients)    # zero-copy, as for an array of `comm.empty`

    Unlike `comm.empty` this is not collective, and the arrays belong to no communicator: every communicator of this
    process uses them in place, once all its ranks of the host have mapped the memory, which they do in the first
    calls. A call is zero-copy if every rank passes an array from here or from `comm.empty`; the result has the same
    bits either way. Only arrays of at least 64 KiB are stored so, and only those that NumPy allocates in this thread or
    asyncio task inside the block, by whatever function. The memory is freed with the array.

    A forked process has a copy of the arrays: what it writes is its own. Pages of an array that it has not written to
    may show what the parent writes later, so the parent must keep the array while a child reads it. A process that
    forks must not have arrays of Python objects here.

    Where the system has no such memory (memfd), a warning is logged, and arrays are stored as usual. The method is
    NumPy's interface for allocators (NEP 49).
    """
    try:
        before = _core.allocate_in_heap()
    except OSError as error:
        _LOG.warning("shared_arrays: arrays are stored as usual: %s", error)
        yield
        return
    try:
        yield
    finally:
        _core.set_numpy_allocator(before)
