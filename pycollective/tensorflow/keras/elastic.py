"""Training with tf.keras: Keras 3, or tf_keras with TF_USE_LEGACY_KERAS=1 that survives lost ranks."""

from __future__ import annotations

from tensorflow import keras

from pycollective.keras import elastic_methods as methods
from pycollective.keras.elastic_methods import KerasState, run

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]


class CommitStateCallback(methods.CommitState, keras.callbacks.Callback):
    __doc__ = methods.CommitState.__doc__


class UpdateBatchStateCallback(methods.UpdateBatchState, keras.callbacks.Callback):
    __doc__ = methods.UpdateBatchState.__doc__


class UpdateEpochStateCallback(methods.UpdateEpochState, keras.callbacks.Callback):
    __doc__ = methods.UpdateEpochState.__doc__
