"""Our operation of TensorFlow's graphs: csrc/frameworks/tensorflow/, added to TensorFlow when it is first needed."""

from __future__ import annotations

import functools
import itertools
import re
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_library

from pycollective import _core, settings
from pycollective.errors import MismatchError
from pycollective.hvd.graph_call import GraphCall, Start

TESTED = ((2, 21), (2, 21))
"""The oldest and the newest version of TensorFlow whose C API has been tried; it may change with any version."""
_SELF_TEST_SECONDS = 20
_LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2", "python/_pywrap_tensorflow_internal.so")
_UNKNOWN = 2
_CODES: tuple[tuple[type[Exception], int], ...] = (
    (MismatchError, 9),  # FailedPreconditionError
    (ValueError, 3),  # InvalidArgumentError
    (TypeError, 3),
    (MemoryError, 8),  # ResourceExhaustedError
    (NotImplementedError, 12),  # UnimplementedError
)
"""TF_Code of the errors; UnknownError of all others."""

_keys = itertools.count(secrets.randbits(40) << 22)  # a graph that another process has saved must not find a start here
_starts: dict[int, Start] = {}
_lock = threading.Lock()


def build(start: Start, inputs: Sequence[tf.Tensor], dtypes: Sequence[tf.DType], name: str) -> list[tf.Tensor]:
    """Add an operation to the graph under construction; the results have unknown shapes."""
    attributes = {"operands": list(inputs), "key": keep(start), "Tresults": list(dtypes), "name": name}
    return list(op_def_library.apply_op("PycollectiveCall", **attributes))


def keep(start: Start) -> int:
    """A key by which an operation finds its start."""
    key = next(_keys)
    _starts[key] = start
    return key


def run(key: int, call: GraphCall) -> None:
    """Start what an operation does."""
    if key not in _starts:
        raise ValueError("this graph was built by another process: save models without the operations of pycollective")
    _starts[key](call)


def is_numeric(dtype: tf.DType) -> bool:
    """Return whether NumPy shows tensors of this type without a copy."""
    return dtype.is_numpy_compatible and dtype not in (tf.string, tf.resource, tf.variant)


def why_not() -> str:
    """Why this process does not use the operation; empty if it does."""
    with _lock:
        return _why_not()


@functools.cache
def _why_not() -> str:
    if not settings.read("PYCOLLECTIVE_TENSORFLOW_OP"):
        return "PYCOLLECTIVE_TENSORFLOW_OP is off"
    oldest, newest = TESTED
    version = tuple(map(int, re.findall(r"\d+", tf.__version__)[:2]))
    if not oldest <= version <= newest:
        span = ".".join(map(str, oldest)) + ("" if oldest == newest else f" to {'.'.join(map(str, newest))}")
        return f"TensorFlow is {tf.__version__}; tried was {span}"
    folder = Path(tf.__file__).parent
    dtypes = [value for value in vars(tf.dtypes).values() if isinstance(value, tf.DType) and is_numeric(value)]
    types = {dtype.as_datatype_enum: np.dtype(dtype.as_numpy_dtype) for dtype in dtypes}
    try:
        _core.define_tensorflow_operations([str(folder / name) for name in _LIBRARIES], run, _describe, types)
        return within(_SELF_TEST_SECONDS, _self_test)
    except Exception as error:
        return f"TensorFlow {tf.__version__} refuses it: {error!r}"


def _describe(error: BaseException) -> tuple[int, str]:
    code = next((code for kind, code in _CODES if isinstance(error, kind)), _UNKNOWN)
    return code, f"{type(error).__name__}: {error}"


def within(seconds: float, self_test: Callable[[], str]) -> str:
    """What a self-test returns, which runs in a thread: outside of the graph under construction, and may hang."""
    found: list[str] = []

    def run_it() -> None:
        try:
            found.append(self_test())
        except Exception as error:
            found.append(f"the self-test failed: {error!r}")

    thread = threading.Thread(target=run_it, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else f"the self-test has not completed within {seconds} s"


def _self_test() -> str:
    """Run a graph with one thread, of which each of two operations completes only once both have started."""
    started: list[GraphCall] = []

    def complete() -> None:
        for call in started:
            call.output(0, (2,))[...] = call.inputs[0] + 1
            call.done(None)

    def start(call: GraphCall) -> None:
        started.append(call)
        if len(started) == 2:
            threading.Thread(target=complete, daemon=True).start()

    config = tf.compat.v1.ConfigProto(
        inter_op_parallelism_threads=1, use_per_session_threads=True, device_count={"GPU": 0}
    )
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        x = [tf.constant([value, value], tf.float32) for value in (1, 2)]
        works = [build(start, [each], [tf.float32], "self_test")[0] for each in x]
        results = [result.tolist() for result in session.run(works)]
    return "" if results == [[2, 2], [3, 3]] else f"the self-test returned {results}"
