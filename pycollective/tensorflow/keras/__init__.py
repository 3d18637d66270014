"""The interface of `horovod.tensorflow.keras`: `import pycollective.tensorflow.keras as hvd`.

It serves tf.keras, which is Keras 3, or tf_keras with TF_USE_LEGACY_KERAS=1. See docs/from-horovod.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensorflow import keras as _keras

from pycollective.hvd import interface as _interface
from pycollective.hvd.exceptions import HostsUpdatedInterrupt
from pycollective.hvd.interface import *  # noqa: F403
from pycollective.hvd.objects import allgather_object, broadcast_object
from pycollective.keras.compression import Compression
from pycollective.keras.functions import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    reducescatter,
)
from pycollective.keras.loading import load_with as _load_with
from pycollective.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from pycollective.tensorflow.keras import callbacks, elastic
from pycollective.tensorflow.keras.callbacks import (
    BestModelCheckpoint,
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)

__all__ = [
    *_interface.__all__,
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "Compression",
    "DistributedOptimizer",
    "HostsUpdatedInterrupt",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "PartialDistributedOptimizer",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "load_model",
    "reducescatter",
]


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a saved model, whose optimizer, with its state, becomes a DistributedOptimizer.

    Args:
        filepath: of a model saved by `model.save`, distributed or not.
        custom_optimizers: classes of optimizers that Keras does not have.
        custom_objects: name -> class or function, for `keras.models.load_model`.
        compression: see DistributedOptimizer; its other arguments have their defaults.
        legacy_opts: accepted for Horovod's scripts, and ignored: the file has the optimizer's class.
    """
    return _load_with(_keras, filepath, custom_optimizers, custom_objects, compression)
