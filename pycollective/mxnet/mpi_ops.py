"""The collectives of `horovod.mxnet`, with its names, arguments and semantics.

A call returns when its result has been written; the forms that end with an underscore work in place. Autograd does not
record them. Common arguments:

    tensor, tensors: dense NDArrays (of mx.nd or mx.np) in CPU memory, of any shape; bool, int8, uint8, int32, int64,
            float16, bfloat16, float32, float64.
    name: identifies the operation on all ranks; by default numbered in call order.
    priority: of several operations that are ready, those with higher values run first.
    op: Average (the default), Sum, Adasum, Min, Max or Product.
    prescale_factor, postscale_factor: factors on the inputs and on the result.
    process_set: the participating ranks.

Errors are MXNetError as well as ValueError (invalid arguments) or pycollective.MismatchError (on every rank, if the
ranks' calls do not match). HorovodInternalError: a rank has been lost. TypeError: not a dense NDArray. Semantics and
signatures: https://horovod.readthedocs.io/en/stable/api.html#module-horovod.mxnet
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from pycollective.hvd import interface as _interface
from pycollective.hvd.arguments import get_average_backwards_compatibility_fun
from pycollective.hvd.horovod_basics import HorovodBasics
from pycollective.hvd.interface import *  # noqa: F403
from pycollective.hvd.interface import Average, ProcessSet, global_process_set
from pycollective.hvd.operations import Allgather, Allreduce, Alltoall, Broadcast, ReduceScatter
from pycollective.mxnet import calls

__all__ = [
    *_interface.__all__,
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]

_basics = HorovodBasics()
"""Scripts and Horovod's tests query process sets through it."""
_operator = get_average_backwards_compatibility_fun(_interface)


def _allreduce(
    tensors: Any, in_place: bool, average: bool | None, name: str | None, priority: int, prescale: float,
    postscale: float, process_set: ProcessSet, op: int | None,
) -> list[Any]:  # fmt: skip
    with calls.mxnet_errors():
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
