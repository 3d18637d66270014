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

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from pycollective.hvd import basics
from pycollective.hvd import interface as _interface
from pycollective.hvd.graph_call import GraphCall
from pycollective.hvd.horovod_basics import HorovodBasics
from pycollective.hvd.interface import *  # noqa: F403
from pycollective.hvd.operations import Barrier, Join
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.tensorflow import graph_calls
from pycollective.tensorflow.functions import broadcast_
from pycollective.tensorflow.hvd import calls, collectives
from pycollective.tensorflow.hvd.collectives import *  # noqa: F403
from pycollective.tensorflow.util import _executing_eagerly, gpu_available, unconverted
from pycollective.tensorflow.util import num_rank_is_power_2 as check_num_rank_power_of_2

_basics = HorovodBasics()
__all__ = [
    *_interface.__all__,
    *collectives.__all__,
    "_executing_eagerly",
    "barrier",
    "broadcast_",
    "check_num_rank_power_of_2",
    "gpu_available",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]
HOROVOD_PROCESS_SET_ERROR_INIT, HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET = -1, -2
"""Results of process_set_included_op where it cannot tell."""


def _number(query: Callable[[], int], node: str, name: str | None) -> tf.Tensor:
    """A scalar int32: the value of a function when the graph runs."""
    if tf.executing_eagerly():
        return tf.constant(query(), tf.int32)

    def start(call: GraphCall) -> None:
        call.output(0, ())[...] = query()
        call.done(None)

    return graph_calls.call(start, [], [tf.int32], [tf.TensorShape([])], name=name or node)[0]


@unconverted
def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks in a process set, when the graph runs; a scalar int32."""
    query = functools.partial(_basics._process_set_size, process_set_id)  # noqa: SLF001 (Horovod's name)
    return _number(query, "PycollectiveSize", name)


@unconverted
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 if this rank is in a process set, else 0, when the graph runs; -1 before init(), -2 if there is no such set."""

    def query() -> int:
        if not basics.is_initialized():
            return HOROVOD_PROCESS_SET_ERROR_INIT
        ranks = basics.process_set_ranks().get(process_set_id)
        return HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET if ranks is None else int(basics.rank() in ranks)

    return _number(query, "PycollectiveProcessSetIncluded", name)


@unconverted
def local_size_op(name: str | None = None) -> tf.Tensor:
    """local_size() when the graph runs."""
    return _number(basics.local_size, "PycollectiveLocalSize", name)


@unconverted
def rank_op(name: str | None = None) -> tf.Tensor:
    """rank() when the graph runs."""
    return _number(basics.rank, "PycollectiveRank", name)


@unconverted
def local_rank_op(name: str | None = None) -> tf.Tensor:
    """local_rank() when the graph runs."""
    return _number(basics.local_rank, "PycollectiveLocalRank", name)


@unconverted  # type: ignore[no-redef]
def join() -> tf.Tensor:
    """Wait until all ranks have joined; until then contribute zeros to the others' allreduces.

    Returns:
        the rank that joined last; a scalar int32.
    """
    if tf.executing_eagerly():
        try:
            return tf.constant(_interface.join(), tf.int32)
        except Exception as error:
            calls.raise_translated(error)
    return calls.run(Join(), [], None, global_process_set)[0]


@unconverted  # type: ignore[no-redef]
def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> Any:
    """Completes once all ranks have called; in a v1 graph, returns the operation to run or to depend on."""
    results = calls.run(Barrier(), [], name, process_set)
    return None if tf.compat.v1.executing_eagerly_outside_functions() else results[0].op
