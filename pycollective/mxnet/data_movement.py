"""Operations that move NDArrays: allgather, broadcast, alltoall. See mpi_ops for the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from pycollective.hvd.operations import Allgather, Alltoall, Broadcast
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.mxnet import calls


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """allgather of several NDArrays."""
    return calls.run(Allgather(), tensors, name, priority, process_set)


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
    return calls.run(Broadcast(root_rank), [tensor], name, priority, process_set)[0]


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Overwrite all ranks' NDArrays with the root's; returns the NDArray."""
    return calls.run(Broadcast(root_rank), [tensor], name, priority, process_set, in_place=True)[0]


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
    given = splits.asnumpy() if isinstance(splits, mx.nd.NDArray) else splits
    output, received = calls.run(Alltoall(given), [tensor], name, priority, process_set)
    return output if splits is None else (output, received)
