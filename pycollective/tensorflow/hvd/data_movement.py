"""Operations that move tensors: allgather, broadcast, alltoall. See mpi_ops for the arguments."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pycollective import checks
from pycollective.hvd import basics, graph_operations
from pycollective.hvd.arguments import Average
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.tensorflow.hvd import calls
from pycollective.tensorflow.hvd.errors import require_member
from pycollective.tensorflow.hvd.tensors import as_tensor, several
from pycollective.tensorflow.util import unconverted


def _average(tensor: tf.Tensor, process_set: ProcessSet) -> tf.Tensor:
    return calls.reduced([tensor], None, Average, 1.0, 1.0, False, process_set)[0]


def _any_rows(tensor: tf.Tensor) -> tf.TensorShape:
    """Its shape with an unknown number of rows."""
    if tensor.shape.rank is None:
        return tf.TensorShape(None)
    return tf.TensorShape([None, *tensor.shape[1:]])


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

    def function(*given: tf.Tensor) -> list[tf.Tensor]:
        shapes = list(map(_any_rows, given))
        return calls.run(
            "allgather", graph_operations.Allgather, given, name, process_set,
            shapes=shapes, ignore_name_scope=ignore_name_scope,
        )  # fmt: skip

    def gradient(given: Any, outputs: Any, *gradients: tf.Tensor) -> list[tf.Tensor]:
        return [_my_rows(gradient, x, process_set) for gradient, x in zip(gradients, given, strict=True)]

    return calls.differentiable(function, gradient, inputs) if inputs else []


def _my_rows(gradient: tf.Tensor, x: tf.Tensor, process_set: ProcessSet) -> tf.Tensor:
    rows = tf.shape(x)[:1] if x.shape.rank else tf.ones(1, tf.int32)
    counts = allgather(rows, process_set=process_set)
    start = tf.reduce_sum(counts[: process_set.rank()])
    averaged = _average(gradient, process_set)
    return tf.reshape(averaged[start : start + rows[0]], tf.shape(x))


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
    root_rank = _root(root_rank, process_set)
    make = functools.partial(graph_operations.Broadcast, root_rank=root_rank)

    def function(*inputs: tf.Tensor) -> list[tf.Tensor]:
        return calls.run("broadcast", make, inputs, name, process_set, ignore_name_scope=ignore_name_scope)

    def gradient(inputs: Any, outputs: Any, *gradients: tf.Tensor) -> tf.Tensor:
        averaged = _average(gradients[0], process_set)
        return averaged if basics.rank() == root_rank else tf.zeros_like(averaged) + 0 * averaged

    return calls.differentiable(function, gradient, [as_tensor(tensor)])[0]


def grouped_broadcast(
    tensors: Sequence[tf.Tensor], root_rank: int, name: str | None, process_set: ProcessSet
) -> list[tf.Tensor]:
    """The root's tensors on all ranks; not differentiable."""
    make = functools.partial(graph_operations.Broadcast, root_rank=_root(root_rank, process_set))
    return calls.run("broadcast", make, tensors, name, process_set) if tensors else []


def _root(root_rank: Any, process_set: ProcessSet) -> int:
    require_member(process_set)
    root: int = checks.integer(root_rank, "root_rank")
    ranks = process_set.ranks or []
    if root not in ranks:
        raise ValueError(f"root_rank {root} is not one of the ranks {ranks}")
    return root


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
    dtype = tf.int32 if splits is None else splits.dtype
    make = functools.partial(graph_operations.Alltoall, splits_dtype=np.dtype(dtype.as_numpy_dtype))

    def function(*given: tf.Tensor) -> list[tf.Tensor]:
        shapes = [_any_rows(given[0]), tf.TensorShape([process_set.size()])]
        dtypes = [given[0].dtype, dtype]
        return calls.run("alltoall", make, given, name, process_set, dtypes, shapes, ignore_name_scope)

    def gradient(given: Any, outputs: Any, *gradients: tf.Tensor) -> list[Any]:
        back, _ = alltoall(gradients[0], outputs[1], process_set=process_set)
        return [back, *([None] if len(given) > 1 else [])]

    output, received = calls.differentiable(function, gradient, inputs)
    return output if splits is None else (output, received)
