"""allreduce and reducescatter of NDArrays, single and grouped. See mpi_ops for the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pycollective import checks
from pycollective.engine import Item
from pycollective.hvd import arguments, handles, operations
from pycollective.hvd.arguments import OPS, Average, Sum, factor, get_average_backwards_compatibility_fun
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.mxnet.arrays import copied, empty, readable, several, writable
from pycollective.mxnet.errors import mxnet_errors

_operator = get_average_backwards_compatibility_fun(arguments)


def labels(base: str, count: int) -> list[str]:
    """The names of the operations of a group; that of a single one is not numbered."""
    return [base] if count == 1 else [f"{base}.{number}" for number in range(count)]


def submit_and_wait(items: Sequence[Item], priority: int, process_set: ProcessSet) -> list[Any]:
    """Run a group; MXNet's priorities are higher for what runs first, the engine's are lower."""
    for item in items:
        item.priority = -checks.integer(priority, "priority")
    results: list[Any] = handles.run(items, process_set, list)
    return results


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """New NDArrays: the reductions over all ranks of several NDArrays, which are reduced together."""
    with mxnet_errors():
        with handles.Naming("allreduce", name, process_set) as base:
            inputs = readable(several(tensors))
            made = [empty(tensor, x.shape) for tensor, x in zip(tensors, inputs, strict=True)]
            parts = zip(inputs, (view for _, view in made), labels(base, len(inputs)), strict=True)
            items = operations.reductions(parts, _operator(op, average), prescale_factor, postscale_factor)
        submit_and_wait(items, priority, process_set)
        return [array for array, _ in made]


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """Reduce several NDArrays in place over all ranks; returns them."""
    with mxnet_errors():
        with handles.Naming("allreduce", name, process_set) as base:
            tensors = several(tensors)
            views = writable(tensors)
            parts = zip(views, views, labels(base, len(views)), strict=True)
            items = operations.reductions(parts, _operator(op, average), prescale_factor, postscale_factor)
        submit_and_wait(items, priority, process_set)
        return list(tensors)


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """A new NDArray: the reduction over all ranks."""
    return grouped_allreduce(
        [tensor], average, name, priority, prescale_factor, postscale_factor, process_set, op
    )[0]  # fmt: skip


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """Reduce an NDArray in place over all ranks; returns it."""
    return grouped_allreduce_(
        [tensor], average, name, priority, prescale_factor, postscale_factor, process_set, op
    )[0]  # fmt: skip


def grouped_reducescatter(
    tensors: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """This rank's rows of the reductions (Average or Sum) of several NDArrays; the first ranks get one row more if the
    rows do not divide evenly.

    Raises:
        ValueError: another op, or an NDArray without an axis.
    """
    with mxnet_errors():
        with handles.Naming("reducescatter", name, process_set) as base:
            before, after = factor(prescale_factor, "prescale_factor"), factor(postscale_factor, "postscale_factor")
            if op not in (Average, Sum):
                raise ValueError(f"reducescatter takes op=Average and op=Sum, not {checks.shown(op)}")
            inputs = readable(several(tensors))
            if not all(x.ndim for x in inputs):
                raise ValueError("reducescatter needs NDArrays with an axis to cut")
            items = [
                Item("reducescatter", label, x, op=OPS[op], prescale=before, postscale=after)
                for x, label in zip(inputs, labels(base, len(inputs)), strict=True)
            ]
        results = submit_and_wait(items, priority, process_set)
        return [copied(result, tensor) for result, tensor in zip(results, tensors, strict=True)]


def reducescatter(
    tensor: Any,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """This rank's rows of the reduction over all ranks, see grouped_reducescatter."""
    return grouped_reducescatter([tensor], op, name, priority, process_set, prescale_factor, postscale_factor)[0]
