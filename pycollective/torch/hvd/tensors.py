"""Checks of the tensors that operations take, their form for communication, and tensors for results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pycollective import checks
from pycollective.comm.arguments.arrays import is_lazy_view, lazy_bit
from pycollective.hvd.result_memory import LEAST_BYTES, lease

Tensors = Sequence[torch.Tensor]


def sendable(tensor: torch.Tensor) -> torch.Tensor:
    """The form in which a read-only tensor is sent: itself, or a contiguous copy without negative or conjugate bit."""
    try:
        if type(tensor) is torch.Tensor and is_plain(tensor):
            return tensor
        if tensor.is_meta:
            require_dense(tensor)
        return tensor.detach().contiguous().resolve_conj().resolve_neg()
    except Exception:
        require_dense(tensor)
        raise


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is sent as it is: without gradient, its elements contiguous in memory."""
    return (
        not tensor.requires_grad
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not (tensor.is_neg() or tensor.is_conj() or tensor.is_meta)
    )


def changeable(tensor: torch.Tensor) -> torch.Tensor:
    """The form in which a tensor is changed in place.

    Raises:
        ValueError: it is not contiguous, or is a negated or conjugated view of what is stored in memory.
        TypeError: not a dense tensor.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or tensor.is_meta:
        require_dense(tensor)
    if not tensor.is_contiguous():
        raise ValueError("tensor: one that is changed in place must be contiguous")
    if is_lazy_view(tensor):
        raise ValueError(f"tensor: one that is changed in place must not have its {lazy_bit(tensor)}")
    return tensor.detach()


def require_dense(tensor: Any) -> None:
    """
    Raises:
        TypeError: not a tensor, or one whose elements are not all in memory.
    """
    if not isinstance(tensor, torch.Tensor):
        checks.refuse_type("tensor", "a torch.Tensor", tensor)
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        checks.refuse_type("tensor", "a dense tensor in memory", f"{tensor.layout} on {tensor.device}")


def several(tensors: Any) -> Tensors:
    """The tensors of a grouped operation.

    Raises:
        TypeError: not a sequence of tensors.
    """
    if isinstance(tensors, (list, tuple)):
        return tensors
    if isinstance(tensors, torch.Tensor):
        checks.refuse_type("tensors", "a list or tuple of tensors", tensors)
    return checks.items(tensors, "tensors", "tensors")


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
