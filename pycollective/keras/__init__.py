"""The interface of `horovod.keras`, for Keras 3 on TensorFlow, JAX or torch: `import pycollective.keras as hvd`.

See docs/from-horovod.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras as _keras

from pycollective.hvd import interface as _interface
from pycollective.hvd.exceptions import HostsUpdatedInterrupt
from pycollective.hvd.interface import *  # noqa: F403
from pycollective.hvd.objects import allgather_object, broadcast_object
from pycollective.keras import callbacks, elastic
from pycollective.keras.callbacks import (
    BestModelCheckpoint,
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)
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
