"""Operations that move tensors: allgather, broadcast, alltoall; and the sparse allreduce, which is two allgathers.

See mpi_ops for the arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pycollective import checks
from pycollective.engine import Item
from pycollective.hvd import basics, handles, operations
from pycollective.hvd.arguments import Average, Sum
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.torch.hvd.reductions import Allreduce
from pycollective.torch.hvd.tensors import Tensors, changeable, empty_like, sendable, several

# -- allgather -----------------------------------------------------------------------------------------------------


def _allgathers(tensors: Tensors, name: str | None, process_set: ProcessSet, complete: bool = True) -> list[Item]:
    """`complete`: fail if a rank has joined."""
    with handles.Naming("allgather", name, process_set) as base:
        items = []
        for number, tensor in enumerate(tensors):
            label = base if len(tensors) == 1 else f"{base}.{number}"
            x = sendable(tensor)
            items.append(Item("allgather", label, x if x.dim() else x.reshape(1), complete=complete))
        return items


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start to concatenate all ranks' tensors along the first axis, whose extent may differ between ranks.

    Raises (synchronize):
        HorovodInternalError: a rank has called hvd.join().
    """
    return handles.start(_allgathers([tensor], name, process_set), process_set)


class Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        joined = handles.run(_allgathers(tensors, name, process_set), process_set, list)
        ctx.process_set = process_set
        ctx.shapes = [tensor.shape for tensor in tensors]
        return tuple(joined)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The mean of the ranks' gradients for this rank's rows, as Horovod defines it."""
        mine = []
        for gradient, shape in zip(gradients, ctx.shapes, strict=True):
            rows = shape[0] if shape else 1
            counts = handles.run(_allgathers([torch.tensor([rows])], None, ctx.process_set), ctx.process_set)
            start = int(counts[: ctx.process_set.rank()].sum())
            averaged = Allreduce.apply(gradient, None, Average, 1.0, 1.0, ctx.process_set)
            mine.append(averaged[start : start + rows].reshape(shape))
        return (None, None, *mine)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """All ranks' tensors concatenated along the first axis, in rank order. Its gradient is averaged over the ranks."""
    (joined,) = Allgather.apply(name, process_set, tensor)
    return joined


def grouped_allgather_async(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """allgather_async of several tensors; the result is a list."""
    return handles.start(_allgathers(several(tensors), name, process_set), process_set, list)


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """allgather of several tensors."""
    return list(Allgather.apply(name, process_set, *several(tensors)))


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start a reduction (Sum or Average) of a sparse COO tensor; call the returned function for the result.

    Raises:
        ValueError: another op.
    """
    if checks.integer(op, "op") not in (Sum, Average):
        raise ValueError(f"op must be Sum or Average for sparse tensors, not {op}")
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.sparse_coo:
        checks.refuse_type("tensor", "a sparse COO tensor", tensor)
    tensor = tensor.coalesce()
    base = handles.unnamed("sparse_allreduce", process_set) if name is None else checks.text(name, "name")
    parts = (("indices", tensor.indices().t().contiguous()), ("values", tensor.values()))
    indices, values = (
        handles.start(_allgathers([part], f"{base}.{label}", process_set, complete=False), process_set)
        for label, part in parts
    )

    def finish() -> torch.Tensor:
        where, what = handles.synchronize(indices), handles.synchronize(values)
        if op == Average:
            what = what / process_set.size()
        return torch.sparse_coo_tensor(where.t(), what, tensor.shape, check_invariants=False).coalesce()

    return finish


# -- broadcast -----------------------------------------------------------------------------------------------------


def _broadcasts(
    tensor: torch.Tensor, in_place: bool, root_rank: int, name: str | None, process_set: ProcessSet
) -> list[Item]:
    with handles.Naming("broadcast", name, process_set) as label:
        x = changeable(tensor) if in_place else sendable(tensor)
        return [operations.broadcast(x, x if in_place else empty_like(tensor), root_rank, label, process_set)]


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to broadcast the root's tensor to all ranks; the result is a new tensor."""
    return handles.start(_broadcasts(tensor, False, root_rank, name, process_set), process_set)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to overwrite all ranks' tensors with the root's."""
    return handles.start(_broadcasts(tensor, True, root_rank, name, process_set), process_set, lambda _: tensor)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.arguments = root_rank, process_set
        return handles.run(_broadcasts(tensor, False, root_rank, name, process_set), process_set)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The mean of the gradients at the root, zeros elsewhere, as Horovod defines it."""
        root_rank, process_set = ctx.arguments
        averaged = Allreduce.apply(gradients[0], None, Average, 1.0, 1.0, process_set)
        return averaged if basics.rank() == root_rank else averaged * 0, None, None, None


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """A new tensor with the root's values. Differentiable with respect to the root's tensor."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Overwrite all ranks' tensors with the root's; returns the tensor."""
    handles.run(_broadcasts(tensor, True, root_rank, name, process_set), process_set)
    return tensor


# -- alltoall ------------------------------------------------------------------------------------------------------


def _alltoall(tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> list[Item]:
    with handles.Naming("alltoall", name, process_set) as label:
        if isinstance(splits, torch.Tensor) and (splits.is_floating_point() or splits.is_complex()):
            raise ValueError(f"splits must be an integer tensor, not one of {splits.dtype}")  # Horovod's class for it
        parts = None if splits is None else checks.integers(splits, "splits", 0)
        return [Item("alltoall", label, sendable(tensor), splits=parts)]


def _counts(rows: Any, splits: Any) -> torch.Tensor:
    """Rows received from each rank, in the dtype of the splits."""
    return torch.tensor(rows, dtype=splits.dtype if isinstance(splits, torch.Tensor) else torch.int32)


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

    def finish(results: list[Any]) -> Any:
        received, rows = results[0]
        return received, _counts(rows, splits)

    return handles.start(_alltoall(tensor, splits, name, process_set), process_set, finish)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        output, ctx.rows = handles.run(_alltoall(tensor, splits, name, process_set), process_set)
        ctx.process_set = process_set
        received = _counts(ctx.rows, splits)
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        back, _ = _Alltoall.apply(gradients[0], ctx.rows, None, ctx.process_set)
        return back, None, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Rows from every rank, and with `splits` also how many from each; see alltoall_async. Differentiable."""
    output, received = _Alltoall.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)
