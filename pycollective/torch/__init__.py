"""The interface of `horovod.torch`: `import pycollective.torch as hvd`. See docs/from-horovod.md.

Importing it also registers the torch.distributed backend "pycollective".
"""

from __future__ import annotations

# First torch alone: importing its part while another thread imports torch ends the process (torch 2.13).
import torch as _torch  # noqa: F401
import torch.distributed as _distributed

from pycollective.hvd.exceptions import HostsUpdatedInterrupt
from pycollective.torch import compiling as _compiling
from pycollective.torch import elastic
from pycollective.torch import mpi_ops as _mpi_ops
from pycollective.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from pycollective.torch.gossip import GossipOptimizer
from pycollective.torch.mpi_ops import *  # noqa: F403
from pycollective.torch.optimizer import DistributedOptimizer
from pycollective.torch.shared_tensors import share_
from pycollective.torch.sync_batch_norm import SyncBatchNorm

if _distributed.is_available():
    from pycollective.torch import distributed as distributed

__all__ = [
    *_mpi_ops.__all__,
    "DistributedOptimizer",
    "GossipOptimizer",
    "HostsUpdatedInterrupt",
    "SyncBatchNorm",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "share_",
]

_compiling.leave_alone()
