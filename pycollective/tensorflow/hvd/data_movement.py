"""Operations that move tensors: allgather, broadcast, alltoall. See mpi_ops for the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pycollective.hvd.operations import Allgather, Alltoall, Broadcast
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.tensorflow.hvd import calls
from pycollective.tensorflow.hvd.tensors import as_tensor, several
from pycollective.tensorflow.util import unconverted


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
