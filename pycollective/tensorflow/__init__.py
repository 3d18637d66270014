"""The interface of `horovod.tensorflow`: `import pycollective.tensorflow as hvd`. See docs/from-horovod.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pycollective.hvd.exceptions import HostsUpdatedInterrupt
from pycollective.tensorflow import elastic, util
from pycollective.tensorflow import mpi_ops as mpi_ops
from pycollective.tensorflow.compression import Compression
from pycollective.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from pycollective.tensorflow.gradient_tape import DistributedGradientTape, PartialDistributedGradientTape
from pycollective.tensorflow.mpi_ops import *  # noqa: F403
from pycollective.tensorflow.optimizer import DistributedAdasumOptimizer, DistributedOptimizer

if TYPE_CHECKING:
    from pycollective.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = [
    *mpi_ops.__all__,
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedAdasumOptimizer",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HostsUpdatedInterrupt",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "elastic",
    "util",
]


def __getattr__(name: str) -> Any:
    """SyncBatchNormalization is made on first use, as Keras takes seconds to import."""
    if name != "SyncBatchNormalization":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pycollective.tensorflow import sync_batch_norm

    return sync_batch_norm.SyncBatchNormalization
