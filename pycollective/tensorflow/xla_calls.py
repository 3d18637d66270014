"""Calls from functions that XLA has compiled (`jit_compile=True`), on the CPU.

Independent ones may be built in different orders by the ranks: see xla_order.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_library

from pycollective import _core
from pycollective.hvd.graph_call import GraphCall, Start
from pycollective.tensorflow import graph_operation, xla_order

_START, _FINISH = "pycollective_start", "pycollective_finish"
_LIBRARY = "libtensorflow_cc.so.2"
_SELF_TEST_SECONDS = 60
_Rows = list[tuple[Any, tuple[int, ...]]]

_signatures: dict[int, tuple[_Rows, _Rows]] = {}
_lock = threading.Lock()


def build(
    start: Start,
    inputs: Sequence[tf.Tensor],
    dtypes: Sequence[tf.DType],
    shapes: Sequence[tf.TensorShape],
    name: str,
) -> list[tf.Tensor]:
    """Add a call to the function under construction.

    Raises:
        InvalidArgumentError: a shape is unknown.
    """
    for shape in [*(x.shape for x in inputs), *shapes]:
        if not tf.TensorShape(shape).is_fully_defined():
            message = f"{name!r} needs known shapes with jit_compile=True, not {shape}: trace with them, or turn it off"
            raise tf.errors.InvalidArgumentError(None, None, message)
    key = graph_operation.keep(start)
    operands: _Rows = [(np.dtype(x.dtype.as_numpy_dtype), tuple(x.shape)) for x in inputs]
    results: _Rows = [
        (np.dtype(d.as_numpy_dtype), tuple(tf.TensorShape(s))) for d, s in zip(dtypes, shapes, strict=True)
    ]
    _signatures[key] = operands, results
    inputs = [tf.convert_to_tensor(x) for x in inputs]
    order = xla_order.order_of(tf.compat.v1.get_default_graph())
    level = order.level_for(inputs)
    started = [*inputs, *order.tickets_before(level)]
    (ticket,) = _custom_call(_START, started, [tf.int64], [tf.TensorShape([2])], f"{name}_start", key)
    waits_for = [ticket, order.started(level, ticket)]
    types, extents = [*dtypes, tf.uint8], [*shapes, tf.TensorShape([])]
    *outputs, completed = _custom_call(_FINISH, waits_for, types, extents, name)
    order.completed(level, completed)
    return outputs


def _custom_call(
    target: str,
    operands: Sequence[tf.Tensor],
    dtypes: Sequence[tf.DType],
    shapes: Sequence[tf.TensorShape],
    name: str,
    key: int | None = None,
) -> list[tf.Tensor]:
    return list(
        op_def_library.apply_op(
            "XlaCustomCallV2",
            operands=list(operands),
            call_target_name=target,
            backend_config="" if key is None else str(key),
            has_side_effect=True,
            result_dtypes=list(dtypes),
            result_shapes=list(shapes),
            name=name,
        )
    )


def why_not() -> str:
    """Why compiled functions of this process cannot call; empty if they can."""
    with _lock:
        return _why_not()


@functools.cache
def _why_not() -> str:
    if reason := graph_operation.why_not():
        return reason
    if tf.config.list_physical_devices("GPU"):
        return "it is compiled for the GPU"
    try:
        library = str(Path(tf.__file__).parent / _LIBRARY)
        _core.define_tensorflow_xla_targets(library, _START, _FINISH, _signatures.__getitem__, graph_operation.run)
        return graph_operation.within(_SELF_TEST_SECONDS, _self_test)
    except Exception as error:
        return f"XLA of TensorFlow {tf.__version__} refuses it: {error!r}"


def _self_test() -> str:
    def start(call: GraphCall) -> None:
        call.output(0, (2,))[...] = call.inputs[0] + 1
        call.output(1, ())[...] = 3
        call.done(None)

    def failing(call: GraphCall) -> None:
        call.done(RuntimeError("of the self-test"))

    shapes = [tf.TensorShape([2]), tf.TensorShape([])]

    def compiled(start: Start) -> Any:
        def function(x: Any) -> Any:
            return build(start, [x], [tf.float32, tf.int32], shapes, "self_test")

        return tf.function(tf.autograph.experimental.do_not_convert(function), jit_compile=True)

    found = [result.numpy().tolist() for result in compiled(start)(tf.constant([1.0, 2.0]))]
    if found != [[2, 3], 3]:
        return f"the self-test returned {found}"
    try:
        compiled(failing)(tf.constant([1.0, 2.0]))
    except tf.errors.OpError as error:
        return "" if "of the self-test" in str(error) else f"the self-test lost an error: {error}"
    return "the self-test lost an error"
