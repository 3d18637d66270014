"""reducescatter: of a reduction, each rank gets its rows. See mpi_ops for the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from pycollective.hvd.arguments import Average, Sum, compressor
from pycollective.hvd.operations import ReduceScatter
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.tensorflow.compression import Compression
from pycollective.tensorflow.hvd import calls
from pycollective.tensorflow.hvd.tensors import as_tensor, several
from pycollective.tensorflow.util import unconverted


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
    inputs = list(map(as_tensor, tensors))
    if any(tensor.shape.rank == 0 for tensor in inputs):  # now, not when a graph runs
        raise ValueError("reducescatter needs a tensor with an axis to cut")
    operation = ReduceScatter(op, prescale_factor, postscale_factor)
    return calls.differentiable(operation, inputs, name, process_set, ignore_name_scope)


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
