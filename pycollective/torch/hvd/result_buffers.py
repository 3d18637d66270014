"""Tensors for results."""

from __future__ import annotations

import torch

from pycollective.hvd.result_memory import LEAST_BYTES, lease
from pycollective.torch.hvd.tensors import require_dense


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
    return torch.from_numpy(lease(nbytes)).view(tensor.dtype).view(tensor.shape)
