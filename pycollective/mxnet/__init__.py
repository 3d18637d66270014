"""The interface of `horovod.mxnet`: `import pycollective.mxnet as hvd`. See docs/from-horovod.md."""

from __future__ import annotations

from pycollective.hvd.exceptions import HostsUpdatedInterrupt
from pycollective.mxnet import elastic
from pycollective.mxnet import mpi_ops as _mpi_ops
from pycollective.mxnet.compression import Compression
from pycollective.mxnet.functions import allgather_object, broadcast_object, broadcast_parameters
from pycollective.mxnet.mpi_ops import *  # noqa: F403
from pycollective.mxnet.optimizer import DistributedOptimizer, DistributedTrainer

__all__ = [
    *_mpi_ops.__all__,
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "HostsUpdatedInterrupt",
    "allgather_object",
    "broadcast_object",
    "broadcast_parameters",
    "elastic",
]
