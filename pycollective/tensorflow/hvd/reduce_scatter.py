"""reducescatter: of a reduction, each rank gets its rows. See mpi_ops for the arguments."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from pycollective import checks
from pycollective.hvd import graph_operations
from pycollective.hvd.arguments import Average, Sum, compressor, factor
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.tensorflow.compression import Compression
from pycollective.tensorflow.hvd import calls
from pycollective.tensorflow.hvd.data_movement import allgather
from pycollective.tensorflow.hvd.tensors import as_tensor, several
from pycollective.tensorflow.util import unconverted


def _my_shape(shape: tf.TensorShape, process_set: ProcessSet) -> tf.TensorShape:
    if shape.rank is None or shape[0] is None:
        return shape
    quotient, rest = divmod(shape[0], process_set.size() or 1)
    return tf.TensorShape([quotient + ((process_set.rank() or 0) < rest), *shape[1:]])


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
    op = checks.integer(op, "op")
    prescale, postscale = factor(prescale_factor, "prescale_factor"), factor(postscale_factor, "postscale_factor")
    if op not in (Average, Sum):
        raise NotImplementedError(f"reducescatter takes op=Average and op=Sum, not {op!r}")
    inputs = list(map(as_tensor, tensors))
    if any(tensor.shape.rank == 0 for tensor in inputs):
        raise ValueError("reducescatter needs a tensor with an axis to cut")
    make = functools.partial(graph_operations.ReduceScatter, op=op, prescale=prescale, postscale=postscale)

    def function(*given: tf.Tensor) -> list[tf.Tensor]:
        shapes = [_my_shape(tensor.shape, process_set) for tensor in given]
        return calls.run(
            "reducescatter", make, given, name, process_set, shapes=shapes, ignore_name_scope=ignore_name_scope
        )

    def gradient(given: Any, outputs: Any, *gradients: tf.Tensor) -> list[tf.Tensor]:
        scale = prescale * postscale * (process_set.size() or 1 if op == Sum else 1)
        return [allgather(gradient * tf.cast(scale, gradient.dtype), process_set=process_set) for gradient in gradients]

    return calls.differentiable(function, gradient, inputs) if inputs else []


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
    small, context = compressor(compression).compress(as_tensor(tensor))
    reduced = _reducescatter(
        small, name, op, ignore_name_scope, process_set, prescale_factor, postscale_factor
    )  # fmt: skip
    result: tf.Tensor = compression.decompress(reduced, context)
    return result


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
    compressor(compression)
    pairs = [compression.compress(as_tensor(tensor)) for tensor in several(tensors)]
    reduced = _grouped_reducescatter(
        [small for small, _ in pairs], None, op, False, process_set, prescale_factor, postscale_factor
    )
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, pairs, strict=True)]
