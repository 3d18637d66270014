"""Gloo through torch.distributed and MPI through mpi4py, as commonly used on lists of tensors."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from ..peers import Array
from ..peers.gloo import GlooPeer
from ..peers.mpi import MpiPeer
from .contender import Contender, Summing
from .shapes import ddp_buckets
from .tensors import laid_out, plain

__all__ = ["gloo_buckets", "gloo_coalesced", "one_by_one"]


def one_by_one(peer: GlooPeer | MpiPeer, name: str, arrays: Sequence[Array]) -> Contender:
    """MPI_Allreduce in place, or torch.distributed.all_reduce, of each array in turn."""
    calls = [peer.allreduce(flat, flat, "sum") for flat in (array.reshape(-1) for array in arrays)]

    def call() -> Sequence[Array]:
        for each in calls:
            each()
        return arrays

    return Summing(name, peer.name, arrays, call)


def gloo_coalesced(peer: GlooPeer, name: str, arrays: Sequence[Array]) -> Contender:
    """torch.distributed's own grouping: many all_reduce calls within its coalescing manager."""
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    tensors = [torch.from_numpy(array) for array in arrays]

    def call() -> Sequence[Array]:
        with dist._coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor)
        return arrays

    return Summing(name, peer.name, arrays, call)


def gloo_buckets(peer: GlooPeer, name: str, arrays: Sequence[Array]) -> Contender:
    """DistributedDataParallel's use of Gloo: its buckets, each one flat tensor, all started before the first is
    awaited.  Copies of gradients to and from the buckets are omitted, in its favour.
    """
    torch: Any = importlib.import_module("torch")
    all_reduce: Any = importlib.import_module("torch.distributed").all_reduce
    shapes = [array.shape for array in arrays]
    inside: dict[int, Array] = {}
    flat: list[Array] = []

    def allocate(count: int) -> Array:
        flat.append(plain(count))
        return flat[-1]

    for bucket in ddp_buckets(shapes):
        inside.update(zip(bucket, laid_out([shapes[index] for index in bucket], allocate), strict=True))
    tensors = [torch.from_numpy(array) for array in flat]
    views = [inside[index] for index in range(len(arrays))]

    def call() -> Sequence[Array]:
        for work in [all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()
        return views

    return Summing(name, peer.name, views, call)
