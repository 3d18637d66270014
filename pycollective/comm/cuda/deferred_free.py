"""Freeing of device memory that peers may still have mapped.

CUDA does not define what happens if an exported allocation is freed before the last peer has closed it. So every rank
records in a table in shared memory when it has closed a window, and an owner frees its part after all have done so: at
the next time it creates or closes a window. (Not in a separate thread: freeing waits for kernels, which the watcher
must not do.) Unmapping and freeing wait for kernels, which may wait for a peer: a window dropped meanwhile stays
until the next call, or until another window is created or closed.
The driver frees what remains when a process ends.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from pycollective import _core

MOST_WINDOWS = 1024
"""Maximum number of live windows of a communicator."""
MAILBOXES = MOST_WINDOWS
"""The row of the communicator's own memory."""


class ClosedWindows:
    """The table of one communicator.

    Args:
        segment: shared memory of `table_bytes(size)`, zero-filled.
    """

    def __init__(self, segment: _core.Segment, rank: int, size: int) -> None:
        buffer: Any = segment  # supports the buffer protocol, which stubs cannot declare before Python 3.12
        self._table = np.frombuffer(buffer, np.int64, (MOST_WINDOWS + 1) * size).reshape(MOST_WINDOWS + 1, size)
        self._rank = rank

    def close(self, number: int, own: Any, row: int | None = None) -> None:
        """Record that this rank has closed a window; its part is freed when all peers have closed it.

        Args:
            number: of the window, the same on all ranks.
            own: the owner of this rank's part.
            row: of the table; by default, that of the number.
        """
        at = number % MOST_WINDOWS if row is None else row
        self._table[at, self._rank] = number + 1
        _waiting[next(_numbers)] = (self._table[at], number + 1, own)
        free_closed()


def table_bytes(size: int) -> int:
    return (MOST_WINDOWS + 1) * size * 8


def close_when_idle(close: Callable[[], None]) -> None:
    """Close a window by one call of `close`: now, or later if kernels of this process are in flight."""
    _leaving[next(_numbers)] = close
    free_closed()


def is_waiting() -> bool:
    return bool(_leaving)


# A destructor may run during another, and threads run concurrently: every step here is one atomic operation.
_waiting: dict[int, tuple[Any, int, Any]] = {}
_leaving: dict[int, Callable[[], None]] = {}
_numbers = itertools.count()


def free_closed() -> None:
    """Close dropped windows and free those no longer mapped by any rank, unless kernels are in flight."""
    cuda: Any = sys.modules.get("pycollective._cuda")
    if cuda is not None and not cuda.idle():
        return
    for key in list(_leaving):
        close = _leaving.pop(key, None)
        if close is not None:
            close()
    for key, (closed, number, _) in list(_waiting.items()):
        if (closed >= number).all():
            _waiting.pop(key, None)
