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

from pycollective.hvd import interface as _interface
from pycollective.hvd.horovod_basics import HorovodBasics
from pycollective.hvd.interface import *  # noqa: F403
from pycollective.mxnet.data_movement import allgather, alltoall, broadcast, broadcast_, grouped_allgather
from pycollective.mxnet.reductions import (
    allreduce,
    allreduce_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    reducescatter,
)

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
