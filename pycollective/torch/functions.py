"""Broadcasts that training scripts need: of models, optimizers and objects, from one rank to all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from pycollective import checks
from pycollective.hvd.objects import allgather_object as allgather_object
from pycollective.hvd.objects import broadcast_object as broadcast_object
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.torch.mpi_ops import broadcast_async_, rank, synchronize


def broadcast_parameters(params: Any, root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Collective: overwrite parameters on all ranks with the root's.

    Args:
        params: model.state_dict(), model.named_parameters() or model.parameters().
        root_rank: the rank whose values are broadcast.

    Raises:
        ValueError: `params` is something else.
    """
    pending = []
    for name, tensor in _named(params):
        if tensor is None:
            continue
        data = tensor.data if tensor.data.is_contiguous() else tensor.data.contiguous()
        pending.append((tensor, data, broadcast_async_(_real(data), root_rank, f"parameters.{name}", process_set)))
    for tensor, data, handle in pending:
        synchronize(handle)
        if data is not tensor.data and data.data_ptr() != tensor.data.data_ptr():
            tensor.data.copy_(data)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the same memory in a type that collectives accept."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _named(params: Any) -> list[tuple[str, Any]]:
    if isinstance(params, Mapping):
        return [(name, p) for name, p in sorted(params.items()) if p is None or isinstance(p, torch.Tensor)]
    if isinstance(params, Iterable) and not isinstance(params, (str, bytes)):
        rows = checks.items(params, "params", "tensors")
        if all(isinstance(row, torch.Tensor) for row in rows):
            return [(str(number), row) for number, row in enumerate(rows)]
        if all(isinstance(row, tuple) and len(row) == 2 and isinstance(row[0], str) for row in rows) and all(
            row[1] is None or isinstance(row[1], torch.Tensor) for row in rows
        ):
            return rows
    raise ValueError(f"params must be a state_dict, named parameters or parameters, not {type(params).__name__}")


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Collective: overwrite an optimizer's state and options on all ranks with the root's.

    The other ranks need not have taken a step: they receive missing state from the root. If the optimizer has no state
    yet, gradients that are None become zeros (except sparse ones), as in Horovod, which takes a step here.

    Args:
        model: its sparse embeddings are left without gradients.

    Raises:
        ValueError: the optimizer is LBFGS, whose state is not a set of tensors per parameter.
    """
    checks.instance(optimizer, "optimizer", torch.optim.Optimizer, "a torch optimizer")
    root_rank = checks.integer(root_rank, "root_rank")
    if model is not None:
        checks.instance(model, "model", torch.nn.Module, "a torch.nn.Module or None")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("the state of LBFGS cannot be broadcast")
    if isinstance(getattr(optimizer, "state", None), Mapping) and rank() == root_rank:
        plain, tensors = _without_tensors(optimizer.state_dict())
    else:
        plain, tensors = None, []
    if not getattr(optimizer, "state", None) and not isinstance(optimizer, torch.optim.SparseAdam):
        _zero_missing_gradients(optimizer, model)
    description = plain, [(t.shape, t.dtype, t.device.type) for t in tensors]
    plain, likes = broadcast_object(description, root_rank, process_set=process_set)
    if rank() != root_rank:  # on each rank's current GPU if the root's tensors are on one
        tensors = [torch.empty(shape, dtype=dtype, device=kind) for shape, dtype, kind in likes]
    pending = [
        broadcast_async_(_real(tensor), root_rank, f"optimizer.{number}", process_set)
        for number, tensor in enumerate(tensors)
    ]
    for handle in pending:
        synchronize(handle)
    if rank() != root_rank:
        optimizer.load_state_dict(_replaced(plain, _Place, lambda place: tensors[place.number]))


def _zero_missing_gradients(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    sparse = {
        id(module.weight)
        for module in (model.modules() if model is not None else ())
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse
    }
    for p in (p for group in optimizer.param_groups for p in group["params"]):
        if p.requires_grad and p.grad is None and id(p) not in sparse:
            p.grad = torch.zeros_like(p)


class _Place:
    """Marks where a tensor was removed from a state."""

    def __init__(self, number: int) -> None:
        self.number = number


def _without_tensors(state: Any) -> tuple[Any, list[torch.Tensor]]:
    """A copy of nested containers without the tensors, and the tensors."""
    tensors: list[torch.Tensor] = []

    def place(tensor: torch.Tensor) -> _Place:
        tensors.append(tensor.detach().contiguous().clone())
        return _Place(len(tensors) - 1)

    return _replaced(state, torch.Tensor, place), tensors


def _replaced(value: Any, kind: type, replacement: Callable[[Any], Any]) -> Any:
    """A copy of nested containers in which `replacement` has been applied to every object of a type."""
    if isinstance(value, kind):
        return replacement(value)
    if isinstance(value, dict):
        return {key: _replaced(inner, kind, replacement) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_replaced(inner, kind, replacement) for inner in value])
    return value
