"""Calls of this library from TensorFlow's graphs: a v1 graph, a `tf.function`, an XLA-compiled function."""

from __future__ import annotations

import atexit
import ctypes
import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from pycollective.hvd import graph_call
from pycollective.hvd.exceptions import HorovodInternalError
from pycollective.hvd.graph_call import Start
from pycollective.tensorflow import graph_operation, xla_calls, xla_order
from pycollective.tensorflow.graph_operation import why_not as why_not

_INTERNAL = f"{HorovodInternalError.__name__}: "


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def call(
    start: Start,
    inputs: Sequence[tf.Tensor],
    dtypes: Sequence[tf.DType],
    shapes: Sequence[tf.TensorShape],
    *,
    name: str,
) -> list[tf.Tensor]:
    """An operation of the graph under construction that runs `start`; returns its results.

    Outside of graphs it runs `start` and waits; its errors are raised unchanged. In a `tf.function`, operations run one
    after the other in the order of their creation, even if nothing uses their results; with jit_compile in the order
    that xla_order describes.

    Errors raised by `start`, or passed to `done`, reach the caller that runs the graph as: InvalidArgumentError
    (ValueError, TypeError), FailedPreconditionError (MismatchError; UnknownError where TensorFlow does not take our own
    operation), UnknownError for all others; functions compiled by XLA raise InternalError for all. The message has the
    class of the error; see `internal_error`.

    Args:
        start: kept for the life of the process, as TensorFlow does not report the end of a graph's last copy.
        dtypes, shapes: of the results, of which there must be one at least; a shape may be partly or wholly unknown.
        name: of the operation in the graph; made unique.

    Raises:
        ValueError: no results.
        TypeError: strings, resources and variants are not taken.
    """
    for dtype in [*(x.dtype for x in inputs), *dtypes]:
        if not graph_operation.is_numeric(dtype):
            raise TypeError(f"the operation {name!r} takes numbers, not {dtype.name}")
    if not dtypes:
        raise ValueError(f"the operation {name!r} has no results: a v1 graph could not run it")
    if tf.executing_eagerly():
        found = graph_call.run(start, [x.numpy() for x in inputs], [dtype.as_numpy_dtype for dtype in dtypes])
        return [tf.convert_to_tensor(result) for result in found]
    _keep_threads_at_exit()
    name = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", name).lstrip("_\\/>-") or "pycollective"
    if xla_order.is_compiled(tf.compat.v1.get_default_graph()):
        if reason := xla_calls.why_not():  # without jit_compile the function can call
            raise tf.errors.UnimplementedError(None, None, f"{name!r} cannot be called with jit_compile=True: {reason}")
        return xla_calls.build(start, inputs, dtypes, shapes, name)
    with tf.device("CPU:0"):
        if why_not():
            outputs = _numpy_function(start, inputs, dtypes, name)
        else:
            outputs = graph_operation.build(start, inputs, dtypes, name)
    for output, shape in zip(outputs, shapes, strict=True):
        output.set_shape(shape)
    return outputs


def internal_error(error: BaseException) -> HorovodInternalError | None:
    """What an elastic loop recovers from, if this error of a graph was caused by the loss of a rank."""
    message = str(getattr(error, "message", ""))
    if not isinstance(error, tf.errors.OpError) or _INTERNAL not in message:
        return None
    cause = message.partition(_INTERNAL)[2].partition("\n")[0]
    return HorovodInternalError(cause.partition(" [Op:")[0])


@functools.cache
def _keep_threads_at_exit() -> None:
    atexit.register(_keep_context)


def _keep_context() -> None:
    """Add a reference to TensorFlow's context that is never dropped.

    Deleting the context, which happens when Python ends if nothing else refers to it, joins its threads. One of them
    may be in an operation of ours, which cannot return to Python any more.
    """
    handle = getattr(context.context(), "_context_handle", None)
    if handle is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


def _numpy_function(
    start: Start, inputs: Sequence[tf.Tensor], dtypes: Sequence[tf.DType], name: str
) -> list[tf.Tensor]:
    """A call that blocks a thread of TensorFlow; also in the order of creation, which is the same on all ranks."""
    numpy_dtypes = [dtype.as_numpy_dtype for dtype in dtypes]

    def function(*arrays: Any) -> list[Any]:
        return graph_call.run(start, [np.asarray(array) for array in arrays], numpy_dtypes)

    return list(tf.numpy_function(function, inputs, dtypes, name=name))
