"""The collectives on tensors. See mpi_ops for the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pycollective.hvd import arguments, handles, operations, result_memory
from pycollective.hvd.arguments import Average, Sum, compressor, get_average_backwards_compatibility_fun
from pycollective.hvd.operations import Allgather, Allreduce, Alltoall, Broadcast, HorovodOperation, ReduceScatter
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.tensorflow.compression import Compression
from pycollective.tensorflow.hvd import calls
from pycollective.tensorflow.hvd.calls import raise_translated
from pycollective.tensorflow.hvd.tensors import EagerTensor, as_array, as_result, as_tensor, could_be_recorded, several
from pycollective.tensorflow.util import unconverted

__all__ = [
    "_allreduce",
    "_grouped_allreduce",
    "_grouped_reducescatter",
    "_reducescatter",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "reducescatter",
]

handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(arguments)


def _compressed(
    operation: HorovodOperation, tensors: Sequence[Any], compression: Any, name: str | None, ignore_name_scope: bool,
    process_set: ProcessSet,
) -> list[tf.Tensor]:  # fmt: skip
    pairs = [compressor(compression).compress(as_tensor(tensor)) for tensor in tensors]
    small = [one for one, _ in pairs]
    if isinstance(operation, ReduceScatter) and any(one.shape.rank == 0 for one in small):  # now, not when a graph runs
        raise ValueError("reducescatter needs a tensor with an axis to cut")
    results = calls.differentiable(operation, small, name, process_set, ignore_name_scope)
    return [compression.decompress(result, context) for result, (_, context) in zip(results, pairs, strict=True)]


def _at_once(
    tensor: tf.Tensor, name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> tf.Tensor:
    """The shortest way of the most frequent call: of an eager tensor that no tape records."""
    with calls.EagerNaming("allreduce", name, process_set) as label:
        x = as_array(tensor)
        if x.dtype.kind == "O":
            as_tensor(tensor)
        out = result_memory.empty(x.shape, x.dtype)
        items = [operations.reduction(x, out, label, op, prescale, postscale)]
    try:
        handles.run(items, process_set)
    except Exception as error:
        raise_translated(error)
    return as_result(out)


@unconverted
def _allreduce(
    tensor: tf.Tensor,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """allreduce of a dense tensor, by default its sum."""
    operation = Allreduce(op, prescale_factor, postscale_factor)
    return calls.differentiable(operation, [as_tensor(tensor)], name, process_set, ignore_name_scope)[0]


@unconverted
def _grouped_allreduce(
    tensors: Sequence[tf.Tensor],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """grouped_allreduce of dense tensors, by default their sums."""
    operation = Allreduce(op, prescale_factor, postscale_factor)
    return calls.differentiable(operation, list(map(as_tensor, tensors)), name, process_set, ignore_name_scope)


@unconverted
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """The reduction over all ranks; differentiable, its gradient is the same reduction of the gradients.

    Of tf.IndexedSlices (Sum and Average only): all ranks' slices.

    Raises:
        NotImplementedError: IndexedSlices with another op or a factor.
    """
    if (
        type(tensor) is EagerTensor
        and compression is Compression.none
        and not could_be_recorded()
        and tf.executing_eagerly()
    ):
        op = handle_average_backwards_compatibility(op, average)
        return _at_once(tensor, name, op, prescale_factor, postscale_factor, process_set)
    (result,) = grouped_allreduce(
        [tensor], average, device_dense, device_sparse, compression, op, prescale_factor, postscale_factor,
        process_set, ignore_name_scope, name,
    )  # fmt: skip
    return result


@unconverted
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """allreduce of several tensors, which are reduced together."""
    tensors = several(tensors)
    op = handle_average_backwards_compatibility(op, average)
    compressor(compression)
    scaled = prescale_factor != 1.0 or postscale_factor != 1.0
    slices = [tensor for tensor in tensors if isinstance(tensor, tf.IndexedSlices)]
    sparse = iter(_sparse(slices, name, op, scaled, ignore_name_scope, process_set))
    operation = Allreduce(op, prescale_factor, postscale_factor)
    others = [tensor for tensor in tensors if not isinstance(tensor, tf.IndexedSlices)]
    dense = iter(_compressed(operation, others, compression, name, ignore_name_scope, process_set))
    return [next(sparse if isinstance(tensor, tf.IndexedSlices) else dense) for tensor in tensors]


def _sparse(
    slices: Sequence[tf.IndexedSlices],
    name: str | None,
    op: int,
    scaled: bool,
    ignore_name_scope: bool,
    process_set: ProcessSet,
) -> list[tf.IndexedSlices]:
    if not slices:
        return []
    if op not in (Sum, Average):
        raise NotImplementedError("tf.IndexedSlices take op=Sum and op=Average only; others take sparse_as_dense=True")
    if scaled:
        raise NotImplementedError("tf.IndexedSlices take no prescale_factor or postscale_factor")
    parts = [part for one in slices for part in (one.values, one.indices)]
    gathered = grouped_allgather(parts, None if name is None else f"{name}.slices", ignore_name_scope, process_set)
    size = process_set.size()
    return [
        tf.IndexedSlices(values / tf.cast(size, values.dtype) if op == Average else values, indices, one.dense_shape)
        for one, values, indices in zip(slices, gathered[::2], gathered[1::2], strict=True)
    ]


@unconverted
def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """grouped_reducescatter, by default of the sums."""
    operation = ReduceScatter(op, prescale_factor, postscale_factor)
    return _compressed(operation, tensors, Compression.none, name, ignore_name_scope, process_set)


@unconverted
def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """reducescatter, by default of the sum."""
    return _grouped_reducescatter(
        [tensor], name, op, ignore_name_scope, process_set, prescale_factor, postscale_factor
    )[0]  # fmt: skip


@unconverted
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """This rank's rows of the reduction over all ranks; the first ranks have one more if they do not divide evenly.

    Differentiable.
    """
    operation = ReduceScatter(op, prescale_factor, postscale_factor)
    return _compressed(operation, [tensor], compression, name, ignore_name_scope, process_set)[0]


@unconverted
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """reducescatter of several tensors."""
    operation = ReduceScatter(op, prescale_factor, postscale_factor)
    return _compressed(operation, several(tensors), compression, None, False, process_set)


@unconverted
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """All ranks' tensors concatenated along the first axis, whose extent may differ, in rank order.

    Its gradient is that of this rank's rows, averaged over the ranks, as Horovod defines it.
    """
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


@unconverted
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """allgather of several tensors."""
    inputs = list(map(as_tensor, several(tensors)))
    return calls.differentiable(Allgather(), inputs, name, process_set, ignore_name_scope)


@unconverted
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """The root's tensor on all ranks.

    Its gradient is the mean of the ranks' at the root and zeros elsewhere, as Horovod defines it.

    Args:
        root_rank: among all ranks, even with a process set.
    """
    return calls.differentiable(Broadcast(root_rank), [as_tensor(tensor)], name, process_set, ignore_name_scope)[0]


@unconverted
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows to every rank and returns the rows from every rank; with `splits` also how many came from each.

    Differentiable.

    Args:
        splits: integers, rows for each rank; None: the same number for all.

    Raises:
        ValueError: `splits` are not integers.
    """
    inputs = [as_tensor(tensor)]
    if splits is not None:
        splits = tf.convert_to_tensor(splits)
        if not splits.dtype.is_integer:
            raise ValueError(f"splits must be integers, not {splits.dtype.name}")
        inputs.append(splits)
    operation = Alltoall(splits_dtype=np.int32 if splits is None else splits.dtype.as_numpy_dtype)
    output, received = calls.differentiable(operation, inputs, name, process_set, ignore_name_scope)
    return output if splits is None else (output, received)
