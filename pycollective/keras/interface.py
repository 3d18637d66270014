"""What pycollective.keras and pycollective.tensorflow.keras have in common, whatever package of Keras they serve."""

from __future__ import annotations

from pycollective.hvd import interface
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
from pycollective.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer

__all__ = [
    *interface.__all__,
    "Compression",
    "DistributedOptimizer",
    "HostsUpdatedInterrupt",
    "PartialDistributedOptimizer",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "reducescatter",
]
