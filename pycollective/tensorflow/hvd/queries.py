"""Ranks and sizes as tensors that are evaluated when a graph runs, and the operations without tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from pycollective.hvd import basics, graph_operations, interface
from pycollective.hvd.graph_call import GraphCall
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.tensorflow import graph_calls
from pycollective.tensorflow.hvd import calls
from pycollective.tensorflow.hvd.errors import translated
from pycollective.tensorflow.util import unconverted

HOROVOD_PROCESS_SET_ERROR_INIT, HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET = -1, -2
"""Results of process_set_included_op where it cannot tell."""
_SCALAR = tf.TensorShape([])


def _number(query: Callable[[], int], node: str, name: str | None) -> tf.Tensor:
    """A scalar int32: the value of a function when the graph runs."""
    if tf.executing_eagerly():
        return tf.constant(query(), tf.int32)

    def start(call: GraphCall) -> None:
        try:
            call.output(0, ())[...] = query()
        except Exception as error:
            call.done(error)
        else:
            call.done(None)

    return graph_calls.call(start, [], [tf.int32], [_SCALAR], stateful=True, name=name or node)[0]


def _ranks(process_set_id: int) -> list[int]:
    registered = basics.process_set_ranks()
    if process_set_id not in registered:
        raise ValueError(f"there is no process set {process_set_id!r}; registered are {sorted(registered)}")
    return registered[process_set_id]


@unconverted
def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks in a process set, when the graph runs; a scalar int32."""
    return _number(lambda: len(_ranks(process_set_id)), "PycollectiveSize", name)


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


@unconverted
def join() -> tf.Tensor:
    """Wait until all ranks have joined; until then contribute zeros to the others' allreduces.

    Returns:
        the rank that joined last; a scalar int32.
    """
    if tf.executing_eagerly():
        return tf.constant(translated(interface.join), tf.int32)

    def make(label: str) -> graph_operations.GraphOperation:
        return graph_operations.Join(label, global_process_set)

    return calls.run("join", make, [], None, global_process_set, [tf.int32], [_SCALAR])[0]


@unconverted
def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> Any:
    """Completes once all ranks have called; in a v1 graph, returns the operation to run or to depend on."""

    def make(label: str) -> graph_operations.GraphOperation:
        return graph_operations.Barrier(label, process_set)

    results = calls.run("barrier", make, [], name, process_set, [tf.as_dtype(np.int32)], [_SCALAR])
    return None if tf.compat.v1.executing_eagerly_outside_functions() else results[0].op
