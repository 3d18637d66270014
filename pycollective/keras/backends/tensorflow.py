"""TensorFlow: gradients are reduced by an operation of the graph, or at once if there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pycollective.hvd.gradients.gradient_group import GradientGroup, Slices
from pycollective.hvd.graph_call import GraphCall
from pycollective.tensorflow import graph_calls


def reduce(group: GradientGroup, gradients: Sequence[Any]) -> list[Any]:
    if tf.distribute.has_strategy():
        raise ValueError("a DistributedOptimizer cannot be used in the scope of a tf.distribute.Strategy")
    sparse = [isinstance(gradient, tf.IndexedSlices) for gradient in gradients]
    present = [gradient is not None for gradient in gradients]
    # A rank without any gradient calls too, as the others wait for it; a call must have a result.
    flat = [part for gradient in gradients for part in _parts(gradient)] or [tf.zeros(0)]

    def start(call: GraphCall) -> None:
        inputs, numbers = iter(call.inputs), iter(range(len(call.inputs)))
        arrays = [_input(inputs, *kind) for kind in zip(present, sparse, strict=True)]
        outputs = [_output(call, numbers, array) for array in arrays]
        for number in numbers:
            call.output(number, (0,))
        group.start(arrays, outputs, call.done)

    shapes = [
        tf.TensorShape([None, *part.shape[1:]]) if isinstance(gradient, tf.IndexedSlices) else part.shape
        for gradient in gradients
        for part in _parts(gradient)
    ]
    dtypes = [part.dtype for part in flat]
    results = graph_calls.call(start, flat, dtypes, shapes or [flat[0].shape], name="DistributedOptimizer")
    parts = iter(results)
    return [_assembled(gradient, parts) for gradient in gradients]


def _parts(gradient: Any) -> list[Any]:
    if gradient is None:
        return []
    return [gradient.values, gradient.indices] if isinstance(gradient, tf.IndexedSlices) else [gradient]


def _input(inputs: Iterator[Any], present: bool, sparse: bool) -> Any:
    if not present:
        return None
    return Slices(next(inputs), next(inputs)) if sparse else next(inputs)


def _output(call: GraphCall, numbers: Iterator[int], array: Any) -> Any:
    if array is None:
        return None
    if isinstance(array, Slices):
        values, indices = next(numbers), next(numbers)
        return Slices(lambda shape: call.output(values, shape), lambda shape: call.output(indices, shape))
    return call.output(next(numbers), array.shape)


def _assembled(gradient: Any, parts: Iterator[Any]) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(next(parts), next(parts), gradient.dense_shape)
    return next(parts)


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
