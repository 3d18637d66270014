"""How a collective is called: at once where TensorFlow executes eagerly, else as an operation of the graph.

Errors of the former are made TensorFlow's here; graph_calls has those of graphs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NoReturn

import tensorflow as tf

from pycollective import checks
from pycollective.errors import MismatchError
from pycollective.hvd import basics, graph_call, handles
from pycollective.hvd.operations import Allgather, Alltoall, Barrier, HorovodOperation, Join, ReduceScatter
from pycollective.hvd.process_sets import ProcessSet
from pycollective.tensorflow import graph_calls
from pycollective.tensorflow.hvd.tensors import EagerResults, as_array, could_be_recorded


def run(
    operation: HorovodOperation,
    tensors: Sequence[tf.Tensor],
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool = False,
) -> list[tf.Tensor]:
    """The results of an operation; not differentiable.

    A `tf.function` runs such operations one after the other, in the order in which they are written, so ranks cannot
    confuse two executions of one operation; what shall run together is grouped.

    Args:
        ignore_name_scope: the name on all ranks is `name` alone, also in a tf.name_scope.
    """
    dtypes = _dtypes(operation, tensors)
    if tf.executing_eagerly():
        return _run_eagerly(operation, tensors, name, process_set, dtypes)
    shapes = _shapes(operation, tensors, process_set)
    require_member(process_set)  # now, not when the graph runs
    operation.require(process_set)
    node = f"Pycollective{operation.kind.title()}" if name is None else checks.text(name, "name")
    label = graph_label(node)
    if ignore_name_scope:
        label = node if name is not None else label.rpartition("/")[2]
    start = functools.partial(graph_call.start, operation, f"{operation.kind}.{label}", process_set)
    found: list[tf.Tensor] = graph_calls.call(start, tensors, dtypes, shapes, name=node)
    return found


def _run_eagerly(
    operation: HorovodOperation,
    tensors: Sequence[tf.Tensor],
    name: str | None,
    process_set: ProcessSet,
    dtypes: Sequence[Any],
) -> list[tf.Tensor]:
    results = EagerResults([dtype.as_numpy_dtype for dtype in dtypes])
    with EagerNaming(operation.kind, name, process_set) as label:
        operation.require(process_set)
        arrays = [as_array(tensor) for tensor in tensors]
        try:
            items = operation.items(label, process_set, arrays, results.output)
        except Exception as error:
            raise_translated(error)
    try:
        found = handles.run(items, process_set, list)
        return results.tensors(operation.results(found) if operation.late else ())
    except Exception as error:
        raise_translated(error)


def _dtypes(operation: HorovodOperation, tensors: Sequence[tf.Tensor]) -> list[tf.DType]:
    """Those of the results."""
    if isinstance(operation, (Barrier, Join)):
        return [tf.int32]
    if isinstance(operation, Alltoall):
        return [tensors[0].dtype, tf.as_dtype(operation.splits_dtype)]
    return [tensor.dtype for tensor in tensors]


def _shapes(operation: HorovodOperation, tensors: Sequence[tf.Tensor], process_set: ProcessSet) -> list[tf.TensorShape]:
    """What is known of the results' shapes while a graph is built."""
    shapes = [tensor.shape for tensor in tensors]
    if isinstance(operation, (Barrier, Join)):
        return [tf.TensorShape([])]
    if isinstance(operation, Alltoall):
        return [with_rows(shapes[0], None), tf.TensorShape([process_set.size()])]
    if isinstance(operation, Allgather):
        return [with_rows(shape, None) for shape in shapes]
    if isinstance(operation, ReduceScatter):
        size, rank = process_set.size() or 1, process_set.rank() or 0
        rows = [None if not shape.rank else shape[0] for shape in shapes]
        own = [None if count is None else count // size + (rank < count % size) for count in rows]
        return list(map(with_rows, shapes, own))
    return shapes


def with_rows(shape: tf.TensorShape, rows: int | None) -> tf.TensorShape:
    return tf.TensorShape(None if shape.rank is None else [rows, *shape[1:]])


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
    operation: HorovodOperation,
    tensors: Sequence[tf.Tensor],
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool = False,
) -> list[tf.Tensor]:
    """The results of an operation on any number of tensors; see `run`."""
    if not tensors:
        return []
    if not any(tensor.dtype.is_floating or tensor.dtype.is_complex for tensor in tensors) or (
        tf.executing_eagerly() and not could_be_recorded()
    ):
        return run(operation, tensors, name, process_set, ignore_name_scope)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def recorded(*inputs: tf.Tensor) -> Any:
        outputs = run(operation, inputs, name, process_set, ignore_name_scope)
        return outputs, lambda *gradients: operation.gradient(_Calls, process_set, inputs, outputs, gradients)

    results = recorded(*tensors)
    return list(results) if isinstance(results, (list, tuple)) else [results]


class _Calls:
    """In whose terms gradients are defined."""

    @staticmethod
    def run(operation: HorovodOperation, tensors: Sequence[tf.Tensor], process_set: ProcessSet) -> list[tf.Tensor]:
        return differentiable(operation, tensors, None, process_set)

    @staticmethod
    def own_rows(joined: tf.Tensor, like: tf.Tensor, process_set: ProcessSet) -> tf.Tensor:
        rows = tf.ones(1, tf.int32) if like.shape.rank == 0 else tf.shape(like)[:1]
        (counts,) = run(Allgather(), [rows], None, process_set)
        start = tf.reduce_sum(counts[: process_set.rank()])
        return tf.reshape(joined[start : start + rows[0]], tf.shape(like))


def require_member(process_set: ProcessSet) -> None:
    """
    Raises:
        ValueError: init() was not called, or the set is not registered.
        tf.errors.InvalidArgumentError: this rank is not in it.
    """
    try:
        basics.engine_of(process_set)
    except ValueError as error:
        if not basics.is_initialized() or process_set.process_set_id not in basics.process_set_ranks():
            raise
        raise_translated(error)


def raise_translated(error: Exception) -> NoReturn:
    """
    Raises:
        tf.errors.FailedPreconditionError: the ranks' calls do not match.
        tf.errors.InvalidArgumentError: invalid arguments, found before anything was sent.
        the error itself: any other, such as HorovodInternalError, when a rank was lost or has shut down.
    """
    if isinstance(error, MismatchError):
        raise tf.errors.FailedPreconditionError(None, None, str(error)) from error
    if isinstance(error, (ValueError, TypeError)):
        raise tf.errors.InvalidArgumentError(None, None, str(error)) from error
    raise error
