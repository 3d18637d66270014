"""Gradients of several passes that are summed on the rank before they are reduced over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from pycollective.hvd.arguments import OptimizerOptions

Reduce = Callable[[list[Any], Sequence[Any]], list[Any]]
"""(gradients, variables) -> gradients reduced over all ranks."""


class LocalGradientAggregation:
    """Sums gradients in variables of its own; every n-th pass reduces the sums and lets the optimizer step.

    Here these are local variables of a v1 graph: run tf.compat.v1.local_variables_initializer().

    Attributes:
        counter: a variable: the number of passes in the sums.
    """

    counter: Any

    def __init__(self, options: OptimizerOptions, reduce: Reduce, name: str = "") -> None:
        """`name`: of the variables."""
        self._options, self._reduce, self._name = options, reduce, name
        self._passes = int(options.backward_passes_per_step)
        self._sums: dict[Any, Any] = {}

    def compute(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients for `apply`, None where there was none: reduced ones in every n-th pass.

        Raises:
            ValueError: a sparse gradient, unless sparse_as_dense.
        """
        dense = [self._dense(gradient) for gradient in gradients]
        here = [i for i, gradient in enumerate(dense) if gradient is not None]
        present = [dense[i] for i in here]
        sums = self._sums_for([variables[i] for i in here], present)
        added = [tf.identity(total.assign_add(gradient)) for total, gradient in zip(sums, present, strict=True)]
        with tf.control_dependencies(added):
            count = self.counter.assign_add(1, read_value=True)
        with tf.control_dependencies([count]):
            every = _placed(added, here, len(dense))
            results = tf.cond(
                tf.equal(tf.identity(count), self._passes),
                lambda: self._complete(every, variables),
                lambda: self._incomplete(present, added),
            )
        return _placed(tf.nest.flatten(results), here, len(dense))  # a list of one has become a tensor

    def apply(self, apply_gradients: Callable[[], Any], gradients: Sequence[Any], global_step: Any) -> Any:
        """The operation that calls `apply_gradients` in every n-th pass, and counts all of them in `global_step`."""

        def step() -> tf.Tensor:
            with tf.control_dependencies([apply_gradients()]):
                return tf.constant(True)

        def wait() -> tf.Tensor:
            more = [] if global_step is None else [global_step.assign_add(tf.ones((), global_step.dtype))]
            with tf.control_dependencies(more):
                return tf.constant(False)

        with tf.control_dependencies([gradient for gradient in gradients if gradient is not None]):
            return tf.cond(tf.equal(self.counter.read_value(), 0), step, wait).op

    def _sums_for(self, variables: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """The variables in which these gradients are summed; creates them and the counter if need be."""
        with tf.compat.v1.variable_scope(f"{self._name}_aggregation", reuse=tf.compat.v1.AUTO_REUSE):
            self.counter = _local("count", (), tf.int32)
            sums = [_local(f"sum_{i}", v.shape, gradients[i].dtype) for i, v in enumerate(variables)]
        self._sums = dict(enumerate(sums))
        return sums

    def _incomplete(self, gradients: list[Any], sums: list[Any]) -> list[Any]:
        """What `compute` returns before the n-th pass."""
        return [tf.identity(gradient) for gradient in gradients]

    def _complete(self, sums: list[Any], variables: Sequence[Any]) -> list[Any]:
        reduced = [gradient for gradient in self._reduce(sums, variables) if gradient is not None]
        with tf.control_dependencies(reduced):
            resets = [total.assign(tf.zeros_like(total)) for total in self._sums.values()]
            resets.append(self.counter.assign(0))
        with tf.control_dependencies(resets):
            if self._options.average_aggregated_gradients:
                return [gradient / tf.cast(self._passes, gradient.dtype) for gradient in reduced]
            return list(map(tf.identity, reduced))

    def _dense(self, gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if not self._options.sparse_as_dense:
            raise ValueError("sparse gradients with backward_passes_per_step > 1 need sparse_as_dense=True")
        return tf.convert_to_tensor(gradient)


def _placed(values: Sequence[Any], places: Sequence[int], count: int) -> list[Any]:
    """A list of `count` values: these at their places, None elsewhere."""
    value_at = dict(zip(places, values, strict=True))
    return [value_at.get(i) for i in range(count)]


def _local(name: str, shape: Any, dtype: Any) -> Any:
    return tf.compat.v1.get_variable(
        name, shape, dtype, tf.compat.v1.zeros_initializer(), trainable=False, use_resource=True,
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
    )  # fmt: skip
