"""Operations that move NDArrays: allgather, broadcast, alltoall. See mpi_ops for the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from pycollective import checks
from pycollective.engine import Item
from pycollective.hvd import handles, operations
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.mxnet.arrays import copied, empty, readable, several, writable
from pycollective.mxnet.errors import mxnet_errors
from pycollective.mxnet.reductions import labels, submit_and_wait


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """allgather of several NDArrays."""
    with mxnet_errors():
        with handles.Naming("allgather", name, process_set) as base:
            inputs = list(map(np.atleast_1d, readable(several(tensors))))
            parts = zip(inputs, labels(base, len(inputs)), strict=True)
            items = [Item("allgather", label, x, complete=True) for x, label in parts]
        results = submit_and_wait(items, priority, process_set)
        return [copied(result, tensor) for result, tensor in zip(results, tensors, strict=True)]


def allgather(
    tensor: Any, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """All ranks' NDArrays concatenated along the first axis, whose extent may differ between ranks, in rank order.

    Raises:
        HorovodInternalError: a rank has called hvd.join().
    """
    return grouped_allgather([tensor], name, priority, process_set)[0]


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """A new NDArray with the root's values; `root_rank` is a global rank, even with a process set."""
    with mxnet_errors():
        with handles.Naming("broadcast", name, process_set) as label:
            (x,) = readable([tensor])
            made, out = empty(tensor, x.shape)
            item = operations.broadcast(x, out, root_rank, label, process_set)
        submit_and_wait([item], priority, process_set)
        return made


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Overwrite all ranks' NDArrays with the root's; returns the NDArray."""
    with mxnet_errors():
        with handles.Naming("broadcast", name, process_set) as label:
            (x,) = writable([tensor])
            item = operations.broadcast(x, x, root_rank, label, process_set)
        submit_and_wait([item], priority, process_set)
        return tensor


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Rows from every rank; with `splits` also how many from each, as an NDArray of int32.

    Args:
        splits: rows for each rank, a sequence or an NDArray of integers; None: the same number for all.

    Raises:
        ValueError: the splits are not integers, or do not add up to the rows.
    """
    with mxnet_errors():
        with handles.Naming("alltoall", name, process_set) as label:
            (x,) = readable([tensor])
            if isinstance(splits, mx.nd.NDArray):
                (splits,) = readable([splits])
                if splits.dtype.kind not in "iu":
                    raise ValueError(f"splits must be integers, not {splits.dtype}")
            parts = None if splits is None else checks.integers(splits, "splits", 0)
            item = Item("alltoall", label, x, splits=parts)
        ((received, rows),) = submit_and_wait([item], priority, process_set)
        output = copied(received, tensor)
        return output if splits is None else (output, mx.nd.array(rows, dtype="int32"))
