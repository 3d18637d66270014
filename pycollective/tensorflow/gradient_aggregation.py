"""Gradients of several passes that are summed on the rank before they are reduced over all ranks, in v1 graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Reduce = Callable[[list[Any], list[Any]], list[Any]]
"""(gradients, variables) -> gradients reduced over all ranks."""


class LocalGradientAggregation:
    """Sums gradients in variables of its own; every n-th pass reduces the sums and lets the optimizer step.

    Its variables are local variables of the graph: run tf.compat.v1.local_variables_initializer().
    """

    def __init__(self, passes: int, reduce: Reduce, sparse_as_dense: bool, average: bool, name: str) -> None:
        """
        Args:
            passes: n.
            average: divide the sums by n.
            name: of the variables.
        """
        self._passes, self._reduce, self._sparse_as_dense, self._average = passes, reduce, sparse_as_dense, average
        self._name = name
        self._count: Any = None

    def compute(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients for `apply`, None where there was none: reduced ones in every n-th pass.

        Raises:
            ValueError: a sparse gradient, unless sparse_as_dense.
        """
        dense = [self._dense(gradient) for gradient in gradients]
        here = [i for i, gradient in enumerate(dense) if gradient is not None]
        present, owners = [dense[i] for i in here], [variables[i] for i in here]
        with tf.compat.v1.variable_scope(f"{self._name}_aggregation", reuse=tf.compat.v1.AUTO_REUSE):
            self._count = _local("count", (), tf.int32)
            sums = [_local(f"sum_{i}", v.shape, g.dtype) for i, (v, g) in enumerate(zip(owners, present, strict=True))]
        added = [total.assign_add(gradient) for total, gradient in zip(sums, present, strict=True)]
        with tf.control_dependencies(added):
            count = self._count.assign_add(1, read_value=True)
        with tf.control_dependencies([count]):
            complete = tf.equal(tf.identity(count), self._passes)
            results = tf.cond(complete, lambda: self._complete(sums, owners), lambda: [tf.identity(g) for g in present])
        found: list[Any] = [None] * len(dense)
        for i, gradient in zip(here, tf.nest.flatten(results), strict=True):  # a list of one has become a tensor
            found[i] = gradient
        return found

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
            return tf.cond(tf.equal(self._count.read_value(), 0), step, wait).op

    def _complete(self, sums: list[Any], variables: list[Any]) -> list[Any]:
        values = [total.read_value() for total in sums]
        reduced = self._reduce(values, variables)
        with tf.control_dependencies([*values, *reduced]):
            resets = [total.assign(tf.zeros_like(value)) for total, value in zip(sums, values, strict=True)]
            resets.append(self._count.assign(0))
        with tf.control_dependencies(resets):
            return [g / tf.cast(self._passes, g.dtype) if self._average else tf.identity(g) for g in reduced]

    def _dense(self, gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if not self._sparse_as_dense:
            raise ValueError("sparse gradients with backward_passes_per_step > 1 need sparse_as_dense=True")
        return tf.convert_to_tensor(gradient)


def _local(name: str, shape: Any, dtype: Any) -> Any:
    return tf.compat.v1.get_variable(
        name, shape, dtype, tf.compat.v1.zeros_initializer(), trainable=False, use_resource=True,
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
    )  # fmt: skip
