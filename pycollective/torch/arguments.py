"""Arguments that the operations share, and what is made of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Average, Sum, Adasum, Min, Max, Product = range(6)
OPS = {Average: "avg", Sum: "sum", Min: "min", Max: "max", Product: "prod"}
"""The core's names."""
Tensors = Sequence[torch.Tensor]


def sendable(tensor: torch.Tensor) -> torch.Tensor:
    """What can be sent of a tensor that is only read: itself, or a contiguous copy, negated if that is still to do."""
    return tensor.detach().contiguous().resolve_neg()


def changeable(tensor: torch.Tensor) -> torch.Tensor:
    """What can be written of a tensor that is changed in place.

    Raises:
        ValueError: it is not contiguous, or a view of the negative of what lies in memory.
    """
    if not tensor.is_contiguous() or tensor.is_neg():
        raise ValueError("a tensor that is changed in place must be contiguous")
    return tensor.detach()
