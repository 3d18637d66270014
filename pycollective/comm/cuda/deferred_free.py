"""Device memory that others may still have mapped.

CUDA leaves open what happens if an exported allocation is freed before the last peer has closed it. So every rank says,
in a table in shared memory, when it has closed a window, and an owner frees its part when all have said so: when
it next makes or closes a window. (Not in a thread of its own: freeing waits for kernels, and the watcher must not.)
Unmapping and freeing wait for kernels, which may wait for a peer: a window that is dropped meanwhile stays until the
next call, or until another window is made or closed.
What is left when a process ends is the driver's to clear up.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from pycollective import _core

MOST_WINDOWS = 1024
"""Windows of a communicator that can live at a time."""
MAILBOXES = MOST_WINDOWS
"""The row of the memory that belongs to the communicator itself."""


class ClosedWindows:
    """The table of one communicator.

    Args:
        segment: shared memory of `table_bytes(size)` that begins as zeros.
    """

    def __init__(self, segment: _core.Segment, rank: int, size: int) -> None:
        self._segment = segment
        buffer: Any = segment  # it speaks the buffer protocol, which its stub cannot say before Python 3.12
        self._table = np.frombuffer(buffer, np.int64, (MOST_WINDOWS + 1) * size).reshape(MOST_WINDOWS + 1, size)
        self._rank = rank

    def close(self, number: int, own: Any, row: int | None = None) -> None:
        """This rank has closed a window; its own part is freed when all peers have.

        Args:
            number: of the window, the same on all ranks.
            own: what holds this rank's part.
            row: of the table; the number's by default.
        """
        at = number % MOST_WINDOWS if row is None else row
        self._table[at, self._rank] = number + 1
        _waiting[next(_numbers)] = (self._table[at], number + 1, own)
        free_closed()


def table_bytes(size: int) -> int:
    """Shared memory that the table of a communicator takes."""
    return (MOST_WINDOWS + 1) * size * 8


def close_when_idle(close: Callable[[], None]) -> None:
    """Close a window now, or, while kernels of this process are in flight, later.

    Args:
        close: what is to be done, once.
    """
    _leaving[next(_numbers)] = close
    free_closed()


def is_waiting() -> bool:
    """Whether windows are still to be closed."""
    return bool(_leaving)


# A destructor may run in the midst of another, and threads beside each other: every step here is one operation.
_waiting: dict[int, tuple[Any, int, Any]] = {}
_leaving: dict[int, Callable[[], None]] = {}
_numbers = itertools.count()


def free_closed() -> None:
    """Close what was dropped and free what nobody has mapped any more, unless kernels are in flight."""
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
