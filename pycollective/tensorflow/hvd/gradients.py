"""The gradients of a step, reduced over all ranks in one call."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pycollective import checks
from pycollective.hvd import basics, graph_operations
from pycollective.hvd.arguments import Adasum, Average, compressor, operator_name, split_evenly
from pycollective.hvd.gradients.gradient_group import GradientGroup
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.tensorflow import graph_calls
from pycollective.tensorflow.compression import Compression
from pycollective.tensorflow.hvd import calls
from pycollective.tensorflow.hvd.errors import raise_translated
from pycollective.tensorflow.hvd.reductions import grouped_allreduce
from pycollective.tensorflow.hvd.tensors import EagerResults, as_array, as_tensor
from pycollective.tensorflow.hvd.variables import names_of
from pycollective.tensorflow.util import unconverted

Groups = int | Sequence[Sequence[Any]] | None
_Rows = tuple[tuple[str, tuple[int, ...], str], ...]


class GradientReducer:
    """Reduces the gradients of variables over the ranks of a process set; ranks outside it keep theirs.

    All dense gradients of a call are one operation, in a graph too, so that they are fused by the engine; the ranks
    first compare which gradients they have. Sparse ones (tf.IndexedSlices) are gathered from all ranks.

    Attributes:
        local: the variables whose gradients are not reduced, by id: they belong to this rank only.
    """

    def __init__(
        self,
        name: str,
        op: int = Average,
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        predivide: float = 1.0,
        groups: Groups = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        """
        Args:
            name: of the operations, the same on all ranks.
            op: Average, Sum, Min, Max, Product or Adasum.
            compression: see Compression.
            sparse_as_dense: convert sparse gradients to dense ones.
            predivide: the part of the division by the number of ranks that is done before the sum.
            groups: number of groups of gradients to reduce together, or lists of variables.
            scale_local_gradients: divide the gradients of local variables by the number of ranks.

        Raises:
            ValueError, TypeError: invalid arguments.
        """
        self._name, self._op, self._process_set = name, checks.integer(op, "op"), process_set
        if op != Adasum:
            operator_name(op)
        self._predivide = checks.number(predivide, "gradient_predivide_factor")
        if self._predivide != 1.0 and op != Average:
            raise ValueError("gradient_predivide_factor is supported with op=Average only")
        self._compression = compressor(compression)
        self._sparse_as_dense = checks.flag(sparse_as_dense, "sparse_as_dense")
        self._groups = _checked_groups(groups)
        self._scale_local_gradients = checks.flag(scale_local_gradients, "scale_local_gradients")
        self.local: dict[int, Any] = {}

    @unconverted
    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Collective: the reduced gradients.

        Args:
            gradients: None where a variable has none; then it must have none on any rank.
            variables: the same on all ranks, but for local ones.

        Raises:
            FailedPreconditionError: the ranks' variables or gradients differ; on every rank, with the names.
            NotImplementedError: sparse gradients with an op other than Average and Sum.
        """
        results = list(gradients)
        shared = [i for i, variable in enumerate(variables) if id(variable) not in self.local]
        reduced = self._of_shared([gradients[i] for i in shared], [variables[i] for i in shared])
        for i, gradient in zip(shared, reduced, strict=True):
            results[i] = gradient
        size = self._process_set.size() or 1
        if self._scale_local_gradients and size > 1:
            for i in set(range(len(results))) - set(shared):
                results[i] = _divided(results[i], size)
        return results

    def _of_shared(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        if self._sparse_as_dense:
            gradients = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]
        process_set = self._process_set
        if not process_set.included() and basics.is_initialized() and process_set.process_set_id is not None:
            return gradients
        basics.engine_of(process_set)  # initialized, and the set is registered
        if process_set.size() == 1 or not gradients:
            return gradients
        return self._reduced(gradients, names_of(variables), variables)

    def _reduced(self, gradients: list[Any], names: list[str], variables: list[Any]) -> list[Any]:
        sparse = [isinstance(gradient, tf.IndexedSlices) for gradient in gradients]
        if any(sparse) and self._op not in (Average, 1):
            raise NotImplementedError("sparse gradients take op=Average and op=Sum only: use sparse_as_dense=True")
        dense = [i for i, g in enumerate(gradients) if g is not None and not sparse[i]]
        pairs = [self._compression.compress(as_tensor(gradients[i])) for i in dense]
        small = {i: tensor for i, (tensor, _) in zip(dense, pairs, strict=True)}
        rows = tuple(
            (name, _shape(small.get(i, variable)), _kind(small.get(i), variable, sparse[i]))
            for i, (name, variable) in enumerate(zip(names, variables, strict=True))
        )
        present = [gradient is not None for gradient in gradients]
        reduced, after = self._run(rows, self._grouped(names, variables), present, sparse, list(small.values()))
        results = list(gradients)
        for i, tensor, (_, context) in zip(dense, reduced, pairs, strict=True):
            results[i] = self._compression.decompress(tensor, context)
        slices = [i for i, is_sparse in enumerate(sparse) if is_sparse]
        if slices:
            with tf.control_dependencies(after):
                gathered = grouped_allreduce(
                    [gradients[i] for i in slices],
                    op=self._op, name=f"{self._name}.sparse", process_set=self._process_set,
                )  # fmt: skip
            for i, gradient in zip(slices, gathered, strict=True):
                results[i] = gradient
        return results

    def _run(
        self, rows: _Rows, groups: tuple[tuple[str, ...], ...], present: list[bool], sparse: list[bool],
        small: list[tf.Tensor],
    ) -> tuple[list[tf.Tensor], list[Any]]:  # fmt: skip
        """The reduced dense gradients, and in a graph the operations that do it."""
        label = self._name if tf.executing_eagerly() else calls.graph_label(self._name)
        group = _group(rows, self._op, self._predivide, self._process_set, groups, f"gradient.{label}")
        operation = graph_operations.Gradients(group, present, sparse)
        if tf.executing_eagerly():
            results = EagerResults([tensor.dtype.as_numpy_dtype for tensor in small])
            lists = operation.lay_out([as_array(tensor) for tensor in small], results.output)
            try:
                group.reduce(*lists)
            except Exception as error:
                raise_translated(error)
            return results.tensors(()), []
        dtypes, shapes = [tensor.dtype for tensor in small], [tensor.shape for tensor in small]
        if small:
            tensors = graph_calls.call(operation.start, small, dtypes, shapes, name=self._name)
            return tensors, [tensors[0].op]
        compared = functools.partial(_compare, operation)
        (scalar,) = graph_calls.call(compared, [], [tf.int32], [tf.TensorShape([])], name=self._name)
        return [], [scalar.op]

    def _grouped(self, names: list[str], variables: Sequence[Any]) -> tuple[tuple[str, ...], ...]:
        if self._groups is None:
            return ()
        if isinstance(self._groups, int):
            return tuple(tuple(part) for part in split_evenly(names, self._groups))
        name_of = {id(variable): name for variable, name in zip(variables, names, strict=True)}
        return tuple(tuple(name_of[id(v)] for v in group if id(v) in name_of) for group in self._groups)


def _compare(operation: graph_operations.Gradients, call: Any) -> None:
    """The start of a graph's operation without dense gradients: a scalar 0, as an operation needs a result."""
    call.output(0, ())[...] = 0
    operation.start(call)


def _shape(like: Any) -> tuple[int, ...]:
    shape = tf.TensorShape(like.shape)
    return (-1,) if shape.rank is None else tuple(-1 if extent is None else extent for extent in shape)


def _kind(small: tf.Tensor | None, variable: Any, sparse: bool) -> str:
    dtype = tf.as_dtype(variable.dtype if small is None else small.dtype)
    return f"{dtype.name} (sparse)" if sparse else str(dtype.name)


@functools.lru_cache(maxsize=64)
def _group(
    rows: _Rows, op: int, predivide: float, process_set: ProcessSet, groups: tuple[tuple[str, ...], ...], prefix: str
) -> GradientGroup:
    """A new tape is made for each step; what belongs to its variables is kept."""
    named = {name: (shape, kind) for name, shape, kind in rows}
    return GradientGroup(named, op, predivide, process_set, groups, prefix)


def _checked_groups(groups: Groups) -> Groups:
    """
    Raises:
        ValueError: neither a number of groups nor lists of variables.
    """
    if groups is None or isinstance(groups, (list, tuple)):
        if groups and not all(isinstance(group, (list, tuple)) for group in groups):
            raise ValueError("groups must be a number of groups, or a list of lists of variables")
        return groups
    count = checks.integer(groups, "groups")
    if count < 0:
        raise ValueError("groups must be a number of groups, or a list of lists of variables")
    return count or None


def _divided(gradient: Any, size: int) -> Any:
    """A gradient that is not reduced, divided by the number of ranks, so that it weighs as much as an averaged one."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / np.asarray(size, gradient.values.dtype.as_numpy_dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / np.asarray(size, gradient.dtype.as_numpy_dtype)
