"""Batch normalization over the batches of all ranks, as a Keras layer.

Imported when the layer is first used, as it imports Keras, which takes seconds.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from pycollective.hvd.arguments import Sum
from pycollective.hvd.basics import size
from pycollective.tensorflow.hvd.collectives import _allreduce

_LEGACY = not hasattr(tf.keras, "ops")
"""Whether tf.keras is tf_keras."""


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """Keras's BatchNormalization that in training uses the mean and variance over all ranks' batches.

    Arguments are those of BatchNormalization, but for `fused`. Needs init() before it is called.

    Batches may differ in size between ranks. Mean and variance come from sums of the values and of their squared
    distances to the mean of all ranks, so large means do not cancel the variance.
    """

    def __init__(self, *args: Any, fused: bool = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True")
        if _LEGACY:
            kwargs["fused"] = False
        super().__init__(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        config.pop("fused", None)
        return config

    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if size() == 1:
            found: tuple[Any, Any] = super()._moments(inputs, *args, **kwargs)
            return found
        if (kwargs.get("mask") if _LEGACY else args[0]) is not None:
            raise NotImplementedError("SyncBatchNormalization takes no mask on several ranks")
        axes, keepdims = (args[0], kwargs["keep_dims"]) if _LEGACY else (self._reduction_axes, False)
        mean, variance = _over_all_ranks(inputs, axes, keepdims)
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)


def _over_all_ranks(x: tf.Tensor, axes: Any, keepdims: bool) -> tuple[tf.Tensor, tf.Tensor]:
    wide = x if x.dtype in (tf.float32, tf.float64) else tf.cast(x, tf.float32)
    total = tf.reduce_sum(wide, axes, keepdims=keepdims)
    rows = tf.size(wide, tf.int64) / tf.maximum(tf.size(total, tf.int64), 1)
    flat = tf.concat([tf.reshape(total, [-1]), [tf.cast(rows, wide.dtype)]], 0)
    summed = _allreduce(flat, op=Sum)
    count = tf.stop_gradient(summed[-1])
    mean = tf.reshape(summed[:-1] / count, tf.shape(total))
    shaped = mean if keepdims else tf.reshape(mean, tf.shape(tf.reduce_sum(wide, axes, keepdims=True)))
    squares = tf.reduce_sum(tf.math.squared_difference(wide, shaped), axes, keepdims=keepdims)
    return mean, _allreduce(squares, op=Sum) / count
