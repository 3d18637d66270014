"""NumPy arrays as CPU tensors of torch, which share their memory."""

from __future__ import annotations

import importlib
from typing import Any

from . import Array, PeerUnavailable

__all__ = ["as_tensor", "import_torch"]


def import_torch() -> Any:
    """torch, with one thread for each rank; PeerUnavailable if it is not installed."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise PeerUnavailable(f"torch is not installed ({error}); pip install 'torch==2.13.0'") from error
    torch.set_num_threads(1)
    return torch


def as_tensor(array: Array) -> Any:
    """A tensor in the array's memory; those of the types that NumPy lacks are views of integers of their size."""
    torch = importlib.import_module("torch")
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    bits = torch.from_numpy(array.view({1: "u1", 2: "i2"}[array.dtype.itemsize]))
    return bits.view(getattr(torch, array.dtype.name))
