"""What Horovod's interface has in common for all frameworks; each framework's package exports these names."""

from __future__ import annotations

from pycollective.engine import Item
from pycollective.hvd import basics, handles
from pycollective.hvd.arguments import Adasum, Average, Max, Min, Product, Sum
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
from pycollective.hvd.handles import shutdown
from pycollective.hvd.process_sets import ProcessSet, global_process_set

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "barrier",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
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
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


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
