"""allreduce in all its forms: single and grouped, in place and out of place. See mpi_ops for the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pycollective.engine import Item
from pycollective.hvd import arguments, handles, operations
from pycollective.hvd.arguments import (
    compressor,
    get_average_backwards_compatibility_fun,
)
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.hvd.result_memory import LEAST_BYTES
from pycollective.torch.compression import Compression
from pycollective.torch.hvd.tensors import Tensors, changeable, empty_like, sendable, several

_operator = get_average_backwards_compatibility_fun(arguments)


def _allreduces(
    tensors: Tensors, in_place: bool, name: str | None, op: int, prescale: float, postscale: float,
    process_set: ProcessSet,
) -> list[Item]:  # fmt: skip
    """Items of a group; the name of a single one is not numbered."""
    with handles.Naming("allreduce", name, process_set) as base:
        if len(tensors) == 1:
            x = changeable(tensors[0]) if in_place else sendable(tensors[0])
            out = x if in_place else empty_like(tensors[0])
            return [operations.reduction(x, out, base, op, prescale, postscale)]
        inputs = list(map(changeable if in_place else sendable, tensors))
        outputs = inputs if in_place else map(empty_like, tensors)
        labels = [f"{base}.{number}" for number in range(len(inputs))]
        return operations.reductions(zip(inputs, outputs, labels, strict=True), op, prescale, postscale)


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
    items = _allreduces([tensor], False, name, _operator(op, average), prescale_factor, postscale_factor, process_set)
    return handles.start(items, process_set)


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
    items = _allreduces([tensor], True, name, _operator(op, average), prescale_factor, postscale_factor, process_set)
    return handles.start(items, process_set, lambda _: tensor)


def _is_recorded(tensors: Tensors) -> bool:
    """Return whether autograd records what is done with them: only then the call has to be one of its functions."""
    return torch.is_grad_enabled() and any(getattr(tensor, "requires_grad", True) for tensor in tensors)


def _reduced(
    tensor: torch.Tensor, name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> Any:
    results = handles.run_group(name, [tensor], op, prescale, postscale, process_set, empty_like, LEAST_BYTES)
    if results is not None:
        return results[0]
    return handles.run(_allreduces([tensor], False, name, op, prescale, postscale, process_set), process_set)


class Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, op: int, prescale: float, postscale: float,
                process_set: ProcessSet) -> Any:  # fmt: skip
        ctx.arguments = op, prescale, postscale, process_set
        return _reduced(tensor, name, op, prescale, postscale, process_set)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        op, prescale, postscale, process_set = ctx.arguments
        return Allreduce.apply(gradients[0], None, op, prescale, postscale, process_set), None, None, None, None, None


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
    small, context = compressor(compression).compress(tensor)
    function = Allreduce.apply if _is_recorded([small]) else _reduced
    reduced = function(small, name, _operator(op, average), prescale_factor, postscale_factor, process_set)
    return compression.decompress(reduced, context)


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
    operator = _operator(op, average)
    results = handles.run_group(name, [tensor], operator, prescale_factor, postscale_factor, process_set, None)
    if results is None:
        items = _allreduces([tensor], True, name, operator, prescale_factor, postscale_factor, process_set)
        handles.run(items, process_set)
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
    tensors = several(tensors)
    items = _allreduces(tensors, False, name, _operator(op, average), prescale_factor, postscale_factor, process_set)
    return handles.start(items, process_set, list)


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
    tensors = several(tensors)
    items = _allreduces(tensors, True, name, _operator(op, average), prescale_factor, postscale_factor, process_set)
    return handles.start(items, process_set, lambda _: list(tensors))


def _all_reduced(
    name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet, *tensors: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    results = handles.run_group(name, tensors, op, prescale, postscale, process_set, empty_like, LEAST_BYTES)
    if results is not None:
        return tuple(results)
    items = _allreduces(tensors, False, name, op, prescale, postscale, process_set)
    return tuple(handles.run(items, process_set, list))


class GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet,
                *tensors: torch.Tensor) -> Any:  # fmt: skip
        ctx.arguments = op, prescale, postscale, process_set
        return _all_reduced(name, op, prescale, postscale, process_set, *tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        op, prescale, postscale, process_set = ctx.arguments
        reduced = GroupedAllreduce.apply(None, op, prescale, postscale, process_set, *gradients)
        return (None, None, None, None, None, *reduced)


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
    tensors = several(tensors)
    none = compression is Compression.none  # it changes nothing
    small: Sequence[Any] = tensors
    contexts: Sequence[Any] = ()
    if not none and tensors:
        small, contexts = zip(*map(compressor(compression).compress, tensors), strict=True)
    function: Any = GroupedAllreduce.apply if _is_recorded(small) else _all_reduced
    reduced = function(name, _operator(op, average), prescale_factor, postscale_factor, process_set, *small)
    if none:
        return list(reduced)
    return [compression.decompress(tensor, context) for tensor, context in zip(reduced, contexts, strict=True)]


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
    tensors, operator = several(tensors), _operator(op, average)
    results = handles.run_group(name, tensors, operator, prescale_factor, postscale_factor, process_set, None)
    if results is None:
        items = _allreduces(tensors, True, name, operator, prescale_factor, postscale_factor, process_set)
        handles.run(items, process_set, list)
    return list(tensors)
