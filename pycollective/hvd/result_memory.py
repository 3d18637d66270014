"""Memory for results, reused once the tensors in it have been freed.

Allocating a large tensor in every step costs more in page faults than the allreduce that fills it.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_BYTES = 64 << 10
"""From this size on malloc requests pages from the kernel."""
MOST_SMALL = 256
"""Up to this size results are parts of a common page: aligning each costs more than the copy of its elements."""
MOST_KEPT = 512 << 20
"""Upper limit of the bytes kept for reuse."""
ALIGNMENT = 64
"""Alignment of every result, in bytes: frameworks end the process where they find less."""
_PAGE = 4096
_kept: dict[int, list[NDArray[Any]]] = {}
_bytes_kept = 0
_page = np.empty(0, np.uint8)
_used = 0
_lock = threading.RLock()  # a tensor may be freed while this thread holds it


def lease(nbytes: int) -> NDArray[Any]:
    """Uninitialized bytes, to be used as long as the array or a view of it lives."""
    if nbytes <= MOST_SMALL:
        return _part_of_page(nbytes)
    if nbytes < LEAST_BYTES:
        return _aligned(nbytes)
    memory = _take(nbytes)
    # A view of a view has the owner of the memory as its base, not the view, unless there is another type between.
    leased = np.frombuffer(memory.data, np.uint8)
    weakref.finalize(leased, _give_back, memory).atexit = False
    return leased


def empty(shape: Sequence[int], dtype: Any) -> NDArray[Any]:
    """An uninitialized array in such memory."""
    dtype = np.dtype(dtype)
    made: NDArray[Any] = lease(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
    return made


def _part_of_page(nbytes: int) -> NDArray[Any]:
    global _page, _used
    with _lock:
        start = _used
        end = start + nbytes
        if end > len(_page):
            _page, start, end = _aligned(_PAGE), 0, nbytes
        _used = (end + ALIGNMENT - 1) & -ALIGNMENT
        return _page[start:end]


def _aligned(nbytes: int) -> NDArray[Any]:
    room = np.empty(nbytes + ALIGNMENT, np.uint8)
    skip = -room.__array_interface__["data"][0] % ALIGNMENT
    return room[skip : skip + nbytes]


def _take(nbytes: int) -> NDArray[Any]:
    global _bytes_kept
    with _lock:
        if _kept.get(nbytes):
            _bytes_kept -= nbytes
            return _kept[nbytes].pop()
    return _aligned(nbytes)


def _give_back(memory: NDArray[Any]) -> None:
    global _bytes_kept
    with _lock:
        if _bytes_kept + memory.nbytes <= MOST_KEPT:
            _bytes_kept += memory.nbytes
            _kept.setdefault(memory.nbytes, []).append(memory)
