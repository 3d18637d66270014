"""The collectives of `horovod.torch`, with its names, arguments and semantics.

Every operation exists as NAME_async, which returns a handle, and as NAME, which waits and is differentiable; operations
that can work in place also exist as NAME_async_ and NAME_. Common arguments:

    tensor, tensors: CPU or CUDA tensors of any shape; bool, 8- to 64-bit integers, float16, bfloat16, float32, float64.
            In-place forms need contiguous tensors.
    name: identifies the operation on all ranks; by default numbered in call order.
    op: Average (the default), Sum, Adasum, Min, Max or Product.
    prescale_factor, postscale_factor: factors on the inputs and on the result.
    process_set: the participating ranks.

They raise ValueError if an operation of that name is in progress or arguments are invalid, RuntimeError on every rank
if the ranks' calls do not match, HorovodInternalError if a rank has been lost. Semantics and signatures:
https://horovod.readthedocs.io/en/stable/api.html#module-horovod.torch
"""

from __future__ import annotations

from pycollective.hvd import interface as _interface
from pycollective.hvd.arguments import get_average_backwards_compatibility_fun
from pycollective.hvd.handles import poll, synchronize
from pycollective.hvd.horovod_basics import HorovodBasics
from pycollective.hvd.interface import *  # noqa: F403
from pycollective.torch.compression import Compression
from pycollective.torch.hvd.data_movement import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    sparse_allreduce_async,
)
from pycollective.torch.hvd.reductions import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)

__all__ = [
    *_interface.__all__,
    "Compression",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]


_basics = HorovodBasics()
"""Scripts and Horovod's tests query process sets through it."""
handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(_basics)
