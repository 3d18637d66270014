"""The collectives of `horovod.tensorflow`, with its names, arguments and semantics.

They are executed at once where TensorFlow executes eagerly, without copies; in a `tf.function` or a v1 graph they are
operations of the graph. Common arguments:

    tensor, tensors: of any shape; bool, 8- to 64-bit integers, float16, bfloat16, float32, float64.
    name: identifies the operation on all ranks; by default numbered in call order, in a graph in the order of building.
    op: Average (the default), Sum, Adasum, Min, Max or Product.
    prescale_factor, postscale_factor: factors on the inputs and on the result.
    process_set: the participating ranks.
    ignore_name_scope: a tf.name_scope does not become part of the name.
    device_dense, device_sparse: without effect.

They raise InvalidArgumentError if arguments are invalid or an operation of that name is in progress,
FailedPreconditionError on every rank if the ranks' calls do not match; if a rank has been lost, HorovodInternalError
where executed eagerly and UnknownError from a graph, which `elastic.run` takes for the same. Semantics and signatures:
https://horovod.readthedocs.io/en/stable/api.html#module-horovod.tensorflow
"""

from __future__ import annotations

from pycollective.hvd import interface as _interface
from pycollective.hvd.horovod_basics import HorovodBasics
from pycollective.hvd.interface import *  # noqa: F403
from pycollective.tensorflow.hvd.data_movement import allgather, alltoall, broadcast, grouped_allgather
from pycollective.tensorflow.hvd.queries import (  # type: ignore[assignment]
    barrier,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from pycollective.tensorflow.hvd.reduce_scatter import (
    _grouped_reducescatter,
    _reducescatter,
    grouped_reducescatter,
    reducescatter,
)
from pycollective.tensorflow.hvd.reductions import (
    _allreduce,
    _grouped_allreduce,
    allreduce,
    grouped_allreduce,
    handle_average_backwards_compatibility,
)
from pycollective.tensorflow.hvd.variables import broadcast_
from pycollective.tensorflow.util import _executing_eagerly, gpu_available
from pycollective.tensorflow.util import num_rank_is_power_2 as check_num_rank_power_of_2

_basics = HorovodBasics()
__all__ = [
    *_interface.__all__,
    "_allreduce",
    "_executing_eagerly",
    "_grouped_allreduce",
    "_grouped_reducescatter",
    "_reducescatter",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "check_num_rank_power_of_2",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]
