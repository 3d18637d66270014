"""Memory for results, reused once the tensors in it have been freed.

Allocating a large tensor in every step costs more in page faults than the allreduce that fills it.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pycollective.torch.hvd.tensors import require_dense

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_BYTES = 64 << 10
"""From this size on malloc requests pages from the kernel."""
MOST_KEPT = 512 << 20
"""Upper limit of the bytes kept for reuse."""
_ALIGNMENT = 64
_kept: dict[int, list[NDArray[Any]]] = {}
_bytes_kept = 0
_lock = threading.RLock()  # a tensor may be freed while this thread holds it


def empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """An uninitialized contiguous tensor of the same shape, type and device, with its own storage."""
    try:
        nbytes = tensor.nbytes
    except Exception:
        require_dense(tensor)
        raise
    if nbytes < LEAST_BYTES or tensor.device.type != "cpu":
        if type(tensor) is torch.Tensor and tensor.layout is torch.strided:
            if tensor.is_contiguous():
                return torch.empty_like(tensor)  # three times as fast as torch.empty
            return torch.empty_like(tensor, memory_format=torch.contiguous_format)
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    memory = _take(nbytes)
    lease = memory[:]  # lives as long as the tensor's storage
    weakref.finalize(lease, _give_back, memory).atexit = False
    return torch.from_numpy(lease).view(tensor.dtype).view(tensor.shape)


def _take(nbytes: int) -> NDArray[Any]:
    global _bytes_kept
    with _lock:
        if _kept.get(nbytes):
            _bytes_kept -= nbytes
            return _kept[nbytes].pop()
    room = np.empty(nbytes + _ALIGNMENT, np.uint8)
    skip = -room.ctypes.data % _ALIGNMENT
    return room[skip : skip + nbytes]


def _give_back(memory: NDArray[Any]) -> None:
    global _bytes_kept
    with _lock:
        if _bytes_kept + memory.nbytes <= MOST_KEPT:
            _bytes_kept += memory.nbytes
            _kept.setdefault(memory.nbytes, []).append(memory)
