"""allreduce and reducescatter in all their forms. See mpi_ops for the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pycollective.hvd import arguments
from pycollective.hvd.arguments import Average, compressor, get_average_backwards_compatibility_fun
from pycollective.hvd.operations import Allreduce, HorovodOperation, ReduceScatter
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.torch.compression import Compression
from pycollective.torch.hvd import calls
from pycollective.torch.hvd.tensors import Tensors, several

__all__ = [
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
]

_operator = get_average_backwards_compatibility_fun(arguments)


def _compressed(
    operation: HorovodOperation, tensors: Tensors, name: str | None, compression: Any, process_set: ProcessSet
) -> Sequence[torch.Tensor]:
    if compression is Compression.none:
        return calls.differentiable(operation, tensors, name, process_set)
    pairs = list(map(compressor(compression).compress, tensors))
    reduced = calls.differentiable(operation, [small for small, _ in pairs], name, process_set)
    return [compression.decompress(x, context) for x, (_, context) in zip(reduced, pairs, strict=True)]


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start a reduction over all ranks; `synchronize` of the handle returns a new tensor."""
    operation = Allreduce(_operator(op, average), prescale_factor, postscale_factor)
    return calls.start(operation, [tensor], name, process_set)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an in-place reduction over all ranks."""
    operation = Allreduce(_operator(op, average), prescale_factor, postscale_factor)
    return calls.start(operation, [tensor], name, process_set, in_place=True)


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """A new tensor: the reduction over all ranks. Its gradient is the same reduction of the gradients."""
    operation = Allreduce(_operator(op, average), prescale_factor, postscale_factor)
    return _compressed(operation, [tensor], name, compression, process_set)[0]


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor in place over all ranks; returns it."""
    operation = Allreduce(_operator(op, average), prescale_factor, postscale_factor)
    calls.run(operation, [tensor], name, process_set, in_place=True)
    return tensor


def grouped_allreduce_async(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """allreduce_async of several tensors, which are reduced together; the result is a list."""
    operation = Allreduce(_operator(op, average), prescale_factor, postscale_factor)
    return calls.start(operation, several(tensors), name, process_set, finish=list)


def grouped_allreduce_async_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """allreduce_async_ of several tensors, which are reduced together."""
    operation = Allreduce(_operator(op, average), prescale_factor, postscale_factor)
    return calls.start(operation, several(tensors), name, process_set, in_place=True, finish=list)


def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """New tensors: the reductions over all ranks. Differentiable, like allreduce."""
    operation = Allreduce(_operator(op, average), prescale_factor, postscale_factor)
    return list(_compressed(operation, several(tensors), name, compression, process_set))


def grouped_allreduce_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce tensors in place over all ranks; returns them."""
    tensors = several(tensors)
    operation = Allreduce(_operator(op, average), prescale_factor, postscale_factor)
    calls.run(operation, tensors, name, process_set, in_place=True)
    return list(tensors)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a reduction of which each rank gets its rows; the first ranks get one more if they do not divide evenly."""
    return calls.start(ReduceScatter(op, prescale_factor, postscale_factor), [tensor], name, process_set)


def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """reducescatter_async of several tensors; the result is a list."""
    operation = ReduceScatter(op, prescale_factor, postscale_factor)
    return calls.start(operation, several(tensors), name, process_set, finish=list)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """This rank's rows of the reduction over all ranks. Differentiable."""
    operation = ReduceScatter(op, prescale_factor, postscale_factor)
    return _compressed(operation, [tensor], name, compression, process_set)[0]


def grouped_reducescatter(
    tensors: Tensors,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """reducescatter of several tensors."""
    operation = ReduceScatter(op, prescale_factor, postscale_factor)
    return list(_compressed(operation, several(tensors), name, compression, process_set))
