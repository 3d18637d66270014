"""torch: gradients are reduced in place, at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import torch

from pycollective.hvd.gradients.gradient_group import GradientGroup
from pycollective.torch.compiling import leave_alone

leave_alone()  # with jit_compile=True, Keras compiles the training step


def reduce(group: GradientGroup, gradients: Sequence[Any]) -> list[Any]:
    if any(gradient is not None and gradient.layout is not torch.strided for gradient in gradients):
        raise ValueError("sparse gradients of torch are supported with sparse_as_dense=True only")
    reduced = [None if gradient is None else gradient.detach().contiguous() for gradient in gradients]
    group.reduce(reduced, reduced)
    return reduced


def to_dense(gradient: Any) -> Any:
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


def cast(tensor: Any, dtype: Any) -> Any:
    return tensor.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)


def multiply(gradient: Any, factor: float) -> Any:
    return gradient * factor


def array(value: Any) -> Any:
    if isinstance(value, keras.KerasTensor) or getattr(value, "is_meta", False):  # Keras gives a meta tensor memory
        raise TypeError(f"the ranks can combine values, which a symbolic tensor does not have: {value!r}")
    return keras.ops.convert_to_tensor(value).detach().clone(memory_format=torch.contiguous_format)


def tensor(array: Any) -> Any:
    return array
