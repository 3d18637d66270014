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

from pycollective.engine import Item
from pycollective.hvd import basics, handles
from pycollective.hvd.arguments import Adasum, Average, Max, Min, Product, Sum, get_average_backwards_compatibility_fun
from pycollective.hvd.basics import (
    add_process_set,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    size,
    start_timeline,
    stop_timeline,
)
from pycollective.hvd.built import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from pycollective.hvd.exceptions import HorovodInternalError
from pycollective.hvd.handles import poll, shutdown, synchronize
from pycollective.hvd.horovod_basics import HorovodBasics
from pycollective.hvd.process_sets import ProcessSet, global_process_set
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
from pycollective.torch.hvd.reduce_scatter import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
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
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]


_basics = HorovodBasics()
"""Scripts and Horovod's tests query process sets through it."""
handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(_basics)


def join(device: int = -1) -> int:
    """Wait until all ranks have joined; until then contribute zeros to the others' allreduces.

    For ranks that run out of data before others. Sums and averages of sparse tensors continue without this rank's part;
    every other operation of the others raises RuntimeError, as in Horovod.

    Returns:
        the rank that joined last.

    Raises:
        HorovodInternalError: a rank has exited or called shutdown() without joining; the message names it.
    """
    with handles.internal_errors():
        last = basics.engine_of(global_process_set).join()
    handles.all_joined()
    return last


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return once all ranks have called."""
    handles.run([Item("barrier", handles.unnamed("barrier", process_set))], process_set)
