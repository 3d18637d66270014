"""JAX: gradients are reduced by a call from the compiled function, or at once if they are not traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pycollective.hvd.gradients.gradient_group import GradientGroup
from pycollective.hvd.graph_call import Gradients
from pycollective.jax import handlers


def reduce(group: GradientGroup, gradients: Sequence[Any]) -> list[Any]:
    operands = [gradient for gradient in gradients if gradient is not None]
    if not any(isinstance(operand, jax.core.Tracer) for operand in operands):
        arrays = [None if gradient is None else np.array(gradient) for gradient in gradients]
        group.reduce(arrays, arrays)
        return [None if array is None else jnp.asarray(array) for array in arrays]
    counts = [int(gradient is not None) for gradient in gradients]
    results = iter(handlers.call(Gradients(group, counts).start, operands))
    return [next(results) if count else None for count in counts]


def reduce_if(condition: Any, group: GradientGroup, gradients: Sequence[Any]) -> list[Any]:
    reduced: list[Any] = jax.lax.cond(condition, lambda: reduce(group, gradients), lambda: list(gradients))
    return reduced


def to_dense(gradient: Any) -> Any:
    return gradient


def cast(tensor: Any, dtype: Any) -> Any:
    return tensor.astype(dtype)


def multiply(gradient: Any, factor: float) -> Any:
    return gradient * jnp.asarray(factor, gradient.dtype)


def array(value: Any) -> Any:
    return np.array(value)


def tensor(array: Any) -> Any:
    return jnp.asarray(array)
