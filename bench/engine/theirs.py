"""Gloo through torch.distributed and MPI through mpi4py, as commonly used on lists of tensors."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from ..peers import Array
from ..peers.gloo import GlooPeer
from ..peers.mpi import MpiPeer
from ..peers.tensors import as_tensor
from .contender import Contender, Summing
from .shapes import ddp_buckets
from .tensors import laid_out, plain

__all__ = ["gloo_buckets", "gloo_coalesced", "one_by_one"]


def one_by_one(peer: GlooPeer | MpiPeer, arrays: Sequence[Array]) -> Contender:
    """MPI_Allreduce in place, or torch.distributed.all_reduce, of each array in turn."""
    calls = [peer.allreduce(flat, flat, "sum") for flat in (array.reshape(-1) for array in arrays)]

    def call() -> None:
        for each in calls:
            each()

    return Summing(peer.name, arrays, call)


def gloo_coalesced(peer: GlooPeer, arrays: Sequence[Array]) -> Contender:
    """torch.distributed's own grouping: many all_reduce calls within its coalescing manager."""
    dist: Any = importlib.import_module("torch.distributed")
    tensors = [as_tensor(array) for array in arrays]

    def call() -> None:
        with dist._coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor)

    return Summing(peer.name, arrays, call)


def gloo_buckets(peer: GlooPeer, arrays: Sequence[Array]) -> Contender:
    """DistributedDataParallel's use of Gloo: its buckets, each one flat tensor, all started before the first is
    awaited.  Copies of gradients to and from the buckets are omitted, in its favour.
    """
    all_reduce: Any = importlib.import_module("torch.distributed").all_reduce
    shapes = [array.shape for array in arrays]
    inside: dict[int, Array] = {}
    tensors: list[Any] = []

    def allocate(count: int) -> Array:
        flat = plain(count)
        tensors.append(as_tensor(flat))
        return flat

    for bucket in ddp_buckets(shapes):
        inside.update(zip(bucket, laid_out([shapes[index] for index in bucket], allocate), strict=True))

    def call() -> None:
        for work in [all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    return Summing(peer.name, [inside[index] for index in range(len(arrays))], call)
