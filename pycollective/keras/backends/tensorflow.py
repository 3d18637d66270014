"""TensorFlow: gradients are reduced by an operation of the graph, or at once if there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pycollective.hvd.gradients.gradient_group import GradientGroup
from pycollective.tensorflow.hvd.gradients import reduce_by


def reduce(group: GradientGroup, gradients: Sequence[Any]) -> list[Any]:
    if tf.distribute.has_strategy():
        raise ValueError("a DistributedOptimizer cannot be used in the scope of a tf.distribute.Strategy")
    return reduce_by(group, gradients, "DistributedOptimizer")


def to_dense(gradient: Any) -> Any:
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def cast(tensor: Any, dtype: Any) -> Any:
    return tf.cast(tensor, dtype)


def multiply(gradient: Any, factor: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(multiply(gradient.values, factor), gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


def gradients(loss: Any, variables: Sequence[Any], grad_loss: Any, tape: Any) -> list[Any]:
    """The gradients of a loss, a function or a tensor that the tape has recorded; `grad_loss`: of the loss itself.

    Raises:
        ValueError: a tensor without a tape.
    """
    if callable(loss):
        tape = tf.GradientTape() if tape is None else tape
        with tape:
            loss = loss()
    elif tape is None:
        raise ValueError("a loss that is a tensor needs the tape that has recorded it")
    found: list[Any] = tape.gradient(loss, variables, grad_loss)
    return found


def array(value: Any) -> Any:
    return np.array(tf.convert_to_tensor(value))


def tensor(array: Any) -> Any:
    return tf.convert_to_tensor(array)
