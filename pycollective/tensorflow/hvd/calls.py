"""How a collective is called: at once where TensorFlow executes eagerly, else as an operation of the graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from pycollective import checks
from pycollective.hvd import arguments, handles
from pycollective.hvd.graph_operations import Allreduce, GraphOperation
from pycollective.hvd.process_sets import ProcessSet
from pycollective.tensorflow import graph_calls
from pycollective.tensorflow.hvd.errors import raise_translated, require_member
from pycollective.tensorflow.hvd.tensors import EagerResults, as_array, could_be_recorded

Make = Callable[[str, ProcessSet], GraphOperation]
"""Makes an operation of a name and a process set."""


def run(
    kind: str,
    make: Make,
    tensors: Sequence[tf.Tensor],
    name: str | None,
    process_set: ProcessSet,
    dtypes: Sequence[tf.DType] | None = None,
    shapes: Sequence[tf.TensorShape] | None = None,
    ignore_name_scope: bool = False,
) -> list[tf.Tensor]:
    """The results of a collective.

    A `tf.function` runs such operations one after the other, in the order in which they are written, so ranks cannot
    confuse two executions of one operation; what shall run together is grouped.

    Args:
        kind: the first part of its name on all ranks.
        dtypes, shapes: of the results; None: those of `tensors`.
        ignore_name_scope: the name on all ranks is `name` alone, also in a tf.name_scope.
    """
    if dtypes is None:
        dtypes = [tensor.dtype for tensor in tensors]
    if tf.executing_eagerly():
        results = EagerResults([dtype.as_numpy_dtype for dtype in dtypes])
        with EagerNaming(kind, name, process_set) as label:
            operation, arrays = make(label, process_set), [as_array(tensor) for tensor in tensors]
        try:
            late = operation.run(arrays, results.output)
        except Exception as error:
            raise_translated(error)
        return results.tensors(late)
    if shapes is None:
        shapes = [tensor.shape for tensor in tensors]
    require_member(process_set)  # now, not when the graph runs
    node = f"Pycollective{kind.title()}" if name is None else checks.text(name, "name")
    label = graph_label(node)
    if ignore_name_scope:
        label = node if name is not None else label.rpartition("/")[2]
    operation = make(f"{kind}.{label}", process_set)
    found: list[tf.Tensor] = graph_calls.call(operation.start, tensors, dtypes, shapes, name=node)
    return found


class EagerNaming(handles.Naming):
    """The naming of an operation that is executed at once, with TensorFlow's error where this rank is not a member."""

    def __enter__(self) -> str:
        try:
            return super().__enter__()
        except ValueError:
            require_member(self._process_set)
            raise


def graph_label(node: str) -> str:
    """The ranks' name of an operation of the graph under construction, unique; they build their graphs in the same way.

    A `tf.function` has its own names, as ranks may trace different numbers of functions and its collectives run in
    order. In a v1 graph the branches of a tf.cond may run in any order, so they share the names of the whole graph.
    """
    graph = tf.compat.v1.get_default_graph()
    scope = ""
    while not tf.compat.v1.executing_eagerly_outside_functions() and getattr(graph, "outer_graph", None) is not None:
        scope, graph = f"{scope}_", graph.outer_graph
    return str(graph.unique_name(scope + node))


def differentiable(
    function: Callable[..., Any], gradient: Callable[..., Any], tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """function(*tensors), a list of tensors, with a gradient: gradient(inputs, outputs, *gradients of the outputs)."""
    if not any(tensor.dtype.is_floating or tensor.dtype.is_complex for tensor in tensors) or (
        tf.executing_eagerly() and not could_be_recorded()
    ):
        return list(function(*tensors))

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def recorded(*inputs: tf.Tensor) -> Any:
        outputs = function(*inputs)
        return outputs, lambda *gradients: gradient(inputs, outputs, *gradients)

    results = recorded(*tensors)
    return list(results) if isinstance(results, (list, tuple)) else [results]


def reduced(
    tensors: Sequence[tf.Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    ignore_name_scope: bool,
    process_set: ProcessSet,
) -> list[tf.Tensor]:
    """allreduce of dense tensors; the gradients of other collectives use it too."""
    arguments.factor(prescale, "prescale_factor"), arguments.factor(postscale, "postscale_factor")
    if op != arguments.Adasum:
        arguments.operator_name(op)
    make = functools.partial(Allreduce, op=op, prescale=prescale, postscale=postscale)

    def function(*inputs: tf.Tensor) -> list[tf.Tensor]:
        return run("allreduce", make, inputs, name, process_set, ignore_name_scope=ignore_name_scope)

    def gradient(inputs: Any, outputs: Any, *gradients: tf.Tensor) -> list[tf.Tensor]:
        return reduced(gradients, None, op, prescale, postscale, False, process_set)

    return differentiable(function, gradient, tensors)
