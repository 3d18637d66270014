"""allreduce in all its forms. See mpi_ops for the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from pycollective.hvd import arguments, handles, operations, result_memory
from pycollective.hvd.arguments import Average, Sum, compressor, get_average_backwards_compatibility_fun
from pycollective.hvd.operations import Allreduce
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.tensorflow.compression import Compression
from pycollective.tensorflow.hvd import calls
from pycollective.tensorflow.hvd.data_movement import grouped_allgather
from pycollective.tensorflow.hvd.errors import raise_translated
from pycollective.tensorflow.hvd.tensors import EagerTensor, as_array, as_result, as_tensor, could_be_recorded, several
from pycollective.tensorflow.util import unconverted

handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(arguments)


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
    results: list[Any] = list(tensors)
    sparse = [i for i, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    if sparse:
        scaled = prescale_factor != 1.0 or postscale_factor != 1.0
        found = _sparse([tensors[i] for i in sparse], name, op, scaled, ignore_name_scope, process_set)
        for i, slices in zip(sparse, found, strict=True):
            results[i] = slices
    dense = [i for i, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    if dense:
        small, contexts = zip(*(compression.compress(as_tensor(tensors[i])) for i in dense), strict=True)
        operation = Allreduce(op, prescale_factor, postscale_factor)
        reduced = calls.differentiable(operation, small, name, process_set, ignore_name_scope)
        for i, tensor, context in zip(dense, reduced, contexts, strict=True):
            results[i] = compression.decompress(tensor, context)
    return results


def _sparse(
    slices: Sequence[tf.IndexedSlices],
    name: str | None,
    op: int,
    scaled: bool,
    ignore_name_scope: bool,
    process_set: ProcessSet,
) -> list[tf.IndexedSlices]:
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
