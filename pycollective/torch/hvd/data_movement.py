"""Operations that move tensors: allgather, broadcast, alltoall; and the sparse allreduce, which is two allgathers.

See mpi_ops for the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from pycollective import checks
from pycollective.hvd import handles
from pycollective.hvd.arguments import Average, Sum, op_number
from pycollective.hvd.operations import Allgather, Alltoall, Broadcast
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.torch.hvd import calls
from pycollective.torch.hvd.tensors import Tensors, several

__all__ = [
    "allgather",
    "allgather_async",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "sparse_allreduce_async",
]


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start to concatenate all ranks' tensors along the first axis, whose extent may differ between ranks.

    Raises (synchronize):
        HorovodInternalError: a rank has called hvd.join().
    """
    return calls.start(Allgather(), [tensor], name, process_set)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """All ranks' tensors concatenated along the first axis, in rank order. Its gradient is averaged over the ranks."""
    return calls.differentiable(Allgather(), [tensor], name, process_set)[0]


def grouped_allgather_async(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """allgather_async of several tensors; the result is a list."""
    return calls.start(Allgather(), several(tensors), name, process_set, finish=list)


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """allgather of several tensors."""
    return list(calls.differentiable(Allgather(), several(tensors), name, process_set))


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start a reduction (Sum or Average) of a sparse COO tensor; call the returned function for the result.

    Raises:
        ValueError: another op.
    """
    if op_number(op) not in (Sum, Average):
        raise ValueError(f"op must be Sum or Average for sparse tensors, not {op}")
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        checks.refuse_type("tensor", "a sparse COO tensor", tensor)
    tensor = tensor.coalesce()
    base = handles.unnamed("sparse_allreduce", process_set) if name is None else checks.text(name, "name")
    parts = (("indices", tensor.indices().t().contiguous()), ("values", tensor.values()))
    indices, values = (
        calls.start(Allgather(complete=False), [part], f"{base}.{label}", process_set) for label, part in parts
    )

    def finish() -> torch.Tensor:
        where, what = handles.synchronize(indices), handles.synchronize(values)
        if op == Average:
            what = what / process_set.size()
        return torch.sparse_coo_tensor(where.t(), what, tensor.shape, check_invariants=False).coalesce()

    return finish


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to broadcast the root's tensor to all ranks; the result is a new tensor."""
    return calls.start(Broadcast(root_rank), [tensor], name, process_set)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to overwrite all ranks' tensors with the root's."""
    return calls.start(Broadcast(root_rank), [tensor], name, process_set, in_place=True)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """A new tensor with the root's values. Differentiable with respect to the root's tensor."""
    return calls.differentiable(Broadcast(root_rank), [tensor], name, process_set)[0]


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Overwrite all ranks' tensors with the root's; returns the tensor."""
    calls.run(Broadcast(root_rank), [tensor], name, process_set, in_place=True)
    return tensor


def _with_counts(results: Sequence[torch.Tensor], splits: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows, and how many came from each rank, in the dtype of the splits."""
    received, counts = results
    return received, counts.to(splits.dtype if isinstance(splits, torch.Tensor) else torch.int32)


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to send rows to every rank; `synchronize` returns (tensor, rows received from each rank).

    Args:
        splits: rows for each rank, a sequence or an integer tensor; None: the same number for all.
    """
    operation = Alltoall(splits, np.int64)
    return calls.start(operation, [tensor], name, process_set, finish=lambda results: _with_counts(results, splits))


def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Rows from every rank, and with `splits` also how many from each; see alltoall_async. Differentiable."""
    results = calls.differentiable(Alltoall(splits, np.int64), [tensor], name, process_set)
    return results[0] if splits is None else _with_counts(results, splits)
