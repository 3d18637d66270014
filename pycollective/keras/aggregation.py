"""Adding up the gradients of several passes before they are reduced, for optimizers of tf_keras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from pycollective.keras.options import OptimizerOptions, key_of
from pycollective.keras.reduction import GradientReduction


class Aggregation:
    """The sums of an optimizer's gradients since its last step.

    Attributes:
        counter: a variable: the number of passes in the sums.
    """

    def __init__(self, options: OptimizerOptions, reduction: GradientReduction) -> None:
        self._options, self._reduction = options, reduction
        self._sums: dict[Any, tf.Variable] = {}
        with tf.init_scope():
            self.counter = tf.Variable(0, trainable=False, dtype=tf.int32)

    def compute_gradients(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Add gradients to the sums. Collective in each backward_passes_per_step'th call.

        Returns:
            the sums, reduced in that call.

        Raises:
            ValueError: a gradient is sparse, without the option sparse_as_dense.
        """
        passes = self._options.backward_passes_per_step
        sums = [self._added(g, v) for g, v in zip(gradients, variables, strict=True)]
        count = self.counter.assign_add(1)

        present = [i for i, gradient in enumerate(sums) if gradient is not None]

        def reduced() -> list[Any]:
            found = self._reduction(sums, variables)
            if self._options.average_aggregated_gradients:
                found = [None if g is None else g / passes for g in found]
            with tf.control_dependencies([g for g in found if g is not None]):
                self.counter.assign(0)
                for total in self._sums.values():
                    total.assign(tf.zeros_like(total))
            return [found[i] for i in present]

        found = tf.cond(tf.equal(count, passes), reduced, lambda: [sums[i] for i in present])
        results: list[Any] = [None] * len(sums)
        for i, gradient in zip(present, found, strict=True):
            results[i] = gradient
        return results

    def apply(self, apply: Callable[[], Any], optimizer: Any) -> Any:
        """Call `apply` if the sums have just been reduced; otherwise only count an iteration."""

        def step() -> Any:
            apply()
            return tf.identity(optimizer.iterations)

        def no_step() -> Any:
            return tf.identity(optimizer.iterations.assign_add(1))

        return tf.cond(tf.equal(self.counter, 0), step, no_step)

    def _added(self, gradient: Any, variable: Any) -> Any:
        if gradient is None:
            return None
        if isinstance(gradient, tf.IndexedSlices):
            if not self._options.sparse_as_dense:
                raise ValueError("sparse gradients with backward_passes_per_step > 1 need sparse_as_dense=True")
            gradient = tf.convert_to_tensor(gradient)
        key = key_of(variable)
        if key not in self._sums:
            with tf.init_scope():
                self._sums[key] = tf.Variable(tf.zeros(variable.shape, gradient.dtype), trainable=False)
        return tf.identity(self._sums[key].assign_add(gradient))
