"""How Horovod's operations are called on tensors: started, waited for, and recorded by autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pycollective.engine import Item
from pycollective.hvd import handles
from pycollective.hvd.operations import Allgather, Allreduce, HorovodOperation
from pycollective.hvd.process_sets import ProcessSet
from pycollective.hvd.result_memory import LEAST_BYTES
from pycollective.torch.hvd.tensors import Tensors, changeable, empty_like, sendable


def _items(
    operation: HorovodOperation, tensors: Tensors, name: str | None, process_set: ProcessSet, in_place: bool
) -> list[Item]:
    with handles.Naming(operation.kind, name, process_set) as label:
        inputs = list(map(changeable if in_place else sendable, tensors))

        def output(index: int, _: Sequence[int]) -> torch.Tensor:
            return inputs[index] if in_place else empty_like(tensors[index])

        return operation.items(label, process_set, inputs, output)


def _results(operation: HorovodOperation, found: list[Any]) -> list[torch.Tensor]:
    results = operation.results(found)
    return [result if isinstance(result, torch.Tensor) else torch.from_numpy(result) for result in results]


def start(
    operation: HorovodOperation,
    tensors: Tensors,
    name: str | None,
    process_set: ProcessSet,
    in_place: bool = False,
    finish: Callable[[Any], Any] = handles.first,
) -> int:
    """Start an operation; `synchronize` of the handle returns finish(its results)."""
    return handles.start(
        _items(operation, tensors, name, process_set, in_place),
        process_set,
        lambda found: finish(tensors if in_place else _results(operation, found)),
    )


def run(
    operation: HorovodOperation, tensors: Tensors, name: str | None, process_set: ProcessSet, in_place: bool = False
) -> Sequence[torch.Tensor]:
    """The results of an operation; not differentiable."""
    if type(operation) is Allreduce:
        results = handles.run_group(
            name, tensors, operation.op, operation.prescale, operation.postscale, process_set,
            None if in_place else empty_like, LEAST_BYTES,
        )  # fmt: skip
        if results is not None:
            return results
    found = handles.run(_items(operation, tensors, name, process_set, in_place), process_set, list)
    return tensors if in_place else _results(operation, found)


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, operation: HorovodOperation, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> Any:
        results = run(operation, tensors, name, process_set)
        constant = [None if x.is_floating_point() or x.is_complex() else x for x in results]
        ctx.mark_non_differentiable(*(x for x in constant if x is not None))
        ctx.call = operation, process_set, [x.shape for x in tensors], constant
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        operation, process_set, shapes, constant = ctx.call
        return None, None, None, *operation.gradient(_Calls, process_set, shapes, constant, gradients)


def differentiable(
    operation: HorovodOperation, tensors: Tensors, name: str | None, process_set: ProcessSet
) -> Sequence[torch.Tensor]:
    """The results of an operation, which autograd records where it records what is done with the tensors."""
    if torch.is_grad_enabled() and any(getattr(x, "requires_grad", True) for x in tensors):
        results: Sequence[torch.Tensor] = _Recorded.apply(operation, name, process_set, *tensors)
        return results
    return run(operation, tensors, name, process_set)


class _Calls:
    """In whose terms gradients are defined."""

    @staticmethod
    def run(operation: HorovodOperation, tensors: Tensors, process_set: ProcessSet) -> Sequence[torch.Tensor]:
        return differentiable(operation, tensors, None, process_set)

    @staticmethod
    def own_rows(joined: torch.Tensor, like: torch.Size, process_set: ProcessSet) -> torch.Tensor:
        rows = like[0] if like else 1
        (counts,) = run(Allgather(), [torch.tensor([rows])], None, process_set)
        start = int(counts[: process_set.rank()].sum())
        return joined[start : start + rows].reshape(like)
