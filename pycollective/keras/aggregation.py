"""Adding up the gradients of several passes before they are reduced, for optimizers of tf_keras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from pycollective.hvd.arguments import OptimizerOptions
from pycollective.keras.reduction import GradientReduction, key_of
from pycollective.tensorflow.gradient_aggregation import LocalGradientAggregation


class Aggregation(LocalGradientAggregation):
    """The sums of an optimizer's gradients since its last step; eagerly and in a `tf.function`."""

    def __init__(self, options: OptimizerOptions, reduction: GradientReduction) -> None:
        super().__init__(options, reduction)
        with tf.init_scope():
            self.counter = tf.Variable(0, trainable=False, dtype=tf.int32)

    def apply_or_count(self, apply: Callable[[], Any], optimizer: Any) -> Any:
        """Call `apply` if the sums have just been reduced; otherwise only count an iteration."""

        def step() -> Any:
            apply()
            return tf.identity(optimizer.iterations)

        def no_step() -> Any:
            return tf.identity(optimizer.iterations.assign_add(1))

        return tf.cond(tf.equal(self.counter, 0), step, no_step)

    def _sums_for(self, variables: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        keys = list(map(key_of, variables))
        for key, variable, gradient in zip(keys, variables, gradients, strict=True):
            if key not in self._sums:
                with tf.init_scope():
                    self._sums[key] = tf.Variable(tf.zeros(variable.shape, gradient.dtype), trainable=False)
        return [self._sums[key] for key in keys]

    def _incomplete(self, gradients: list[Any], sums: list[Any]) -> list[Any]:
        return sums
