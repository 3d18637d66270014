"""allreduce and reducescatter of NDArrays, single and grouped. See mpi_ops for the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pycollective.hvd import arguments
from pycollective.hvd.arguments import Average, get_average_backwards_compatibility_fun
from pycollective.hvd.operations import Allreduce, ReduceScatter
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.mxnet import calls
from pycollective.mxnet.errors import mxnet_errors

_operator = get_average_backwards_compatibility_fun(arguments)


def _allreduce(
    tensors: Any, in_place: bool, average: bool | None, name: str | None, priority: int, prescale: float,
    postscale: float, process_set: ProcessSet, op: int | None,
) -> list[Any]:  # fmt: skip
    with mxnet_errors():
        operation = Allreduce(_operator(op, average), prescale, postscale)
    return calls.run(operation, tensors, name, priority, process_set, in_place)


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
    return _allreduce(tensors, False, average, name, priority, prescale_factor, postscale_factor, process_set, op)


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
    return _allreduce(tensors, True, average, name, priority, prescale_factor, postscale_factor, process_set, op)


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
    return _allreduce([tensor], False, average, name, priority, prescale_factor, postscale_factor, process_set, op)[0]


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
    return _allreduce([tensor], True, average, name, priority, prescale_factor, postscale_factor, process_set, op)[0]


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
    return calls.run(ReduceScatter(op, prescale_factor, postscale_factor), tensors, name, priority, process_set)


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
