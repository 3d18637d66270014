"""The gradients of a step, reduced over all ranks in one call."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pycollective import checks
from pycollective.hvd import basics, graph_call
from pycollective.hvd.arguments import Average, OptimizerOptions, Sum, split_evenly
from pycollective.hvd.gradients.gradient_group import GradientGroup
from pycollective.hvd.process_sets import ProcessSet
from pycollective.tensorflow import graph_calls
from pycollective.tensorflow.hvd import calls
from pycollective.tensorflow.hvd.tensors import EagerResults, as_array, as_tensor
from pycollective.tensorflow.util import unconverted

Groups = int | Sequence[Sequence[Any]] | None
_Rows = tuple[tuple[str, tuple[int, ...], str], ...]


class GradientReducer:
    """Reduces the gradients of variables over the ranks of a process set; ranks outside it keep theirs.

    All gradients of a call are one operation, in a graph too, so that they are fused by the engine; the ranks first
    compare which gradients they have. Sparse ones (tf.IndexedSlices) are gathered from all ranks.

    Attributes:
        local: the variables whose gradients are not reduced, by id: they belong to this rank only.
    """

    def __init__(self, name: str, options: OptimizerOptions) -> None:
        """`name`: of the operations, the same on all ranks.

        Raises:
            ValueError: groups are neither a number nor lists of variables.
        """
        groups = options.groups
        if isinstance(groups, (list, tuple)) and not all(isinstance(group, (list, tuple)) for group in groups):
            raise ValueError("groups must be a number of groups, or a list of lists of variables")
        self._name, self._options, self._process_set = name, options, options.process_set
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
        if self._options.scale_local_gradients and size > 1:
            for i in set(range(len(results))) - set(shared):
                results[i] = _divided(results[i], size)
        return results

    def _of_shared(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        if self._options.sparse_as_dense:
            gradients = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]
        if self._process_set.included() is False:
            return gradients
        basics.engine_of(self._process_set)  # initialized, and the set is registered
        if self._process_set.size() == 1 or not gradients:
            return gradients
        return self._reduced(gradients, _names_of(variables), variables)

    def _reduced(self, gradients: list[Any], names: list[str], variables: list[Any]) -> list[Any]:
        sparse = [isinstance(gradient, tf.IndexedSlices) for gradient in gradients]
        if any(sparse) and self._options.op not in (Average, Sum):
            raise NotImplementedError("sparse gradients take op=Average and op=Sum only: use sparse_as_dense=True")
        contexts: dict[int, Any] = {}
        for i, gradient in enumerate(gradients):
            if gradient is not None and not sparse[i]:
                gradients[i], contexts[i] = self._options.compression.compress(as_tensor(gradient))
        rows = tuple(
            (name, *_row(gradients[i] if i in contexts else variable, sparse[i]))
            for i, (name, variable) in enumerate(zip(names, variables, strict=True))
        )
        label = self._name if tf.executing_eagerly() else calls.graph_label(self._name)
        groups = self._grouped(names, variables)
        predivide = float(self._options.gradient_predivide_factor)
        group = _group(rows, int(self._options.op), predivide, self._process_set, groups, f"gradient.{label}")
        results = reduce_by(group, gradients, self._name)
        for i, context in contexts.items():
            results[i] = self._options.compression.decompress(results[i], context)
        return results

    def _grouped(self, names: list[str], variables: Sequence[Any]) -> tuple[tuple[str, ...], ...]:
        groups = self._options.groups
        if not groups:
            return ()
        if not isinstance(groups, (list, tuple)):
            return tuple(tuple(part) for part in split_evenly(names, checks.integer(groups, "groups")))
        name_of = {id(variable): name for variable, name in zip(variables, names, strict=True)}
        return tuple(tuple(name_of[id(v)] for v in group if id(v) in name_of) for group in groups)


@unconverted
def reduce_by(group: GradientGroup, gradients: Sequence[Any], name: str) -> list[Any]:
    """Collective: reduce dense gradients and tf.IndexedSlices by a group.

    It is done at once where TensorFlow executes eagerly, else by an operation of the graph with this name. A rank
    without any gradient takes part too, as the others wait for it.
    """
    parts = [_parts(gradient) for gradient in gradients]
    flat = [part for some in parts for part in some]
    operation = graph_call.Gradients(group, list(map(len, parts)))
    if tf.executing_eagerly():
        made = EagerResults([part.dtype.as_numpy_dtype for part in flat])
        group.reduce(*operation.lay_out(list(map(as_array, flat)), made.output))
        found = made.tensors(())
    else:
        shapes = [
            part.shape if len(some) == 1 else calls.with_rows(part.shape, None) for some in parts for part in some
        ]
        dtypes = [part.dtype for part in flat]
        found = graph_calls.call(operation.start, flat, dtypes or [tf.int32], shapes or [tf.TensorShape([])], name=name)
    results = iter(found)
    return [_assembled(gradient, results) for gradient in gradients]


def _names_of(variables: Iterable[Any]) -> list[str]:
    """The variables' names, unique: the same on all ranks if they have the same variables in the same order."""
    plain = [str(getattr(v, "path", None) or getattr(v, "name", None) or "source") for v in variables]
    repeated = {name for name, count in Counter(plain).items() if count > 1}
    seen: defaultdict[str, int] = defaultdict(int)
    unique = []
    for name in plain:
        if name in repeated:
            seen[name] += 1
            name = f"{name} ({seen[name]})"
        unique.append(name)
    return unique


def _parts(gradient: Any) -> list[tf.Tensor]:
    if gradient is None:
        return []
    return [gradient.values, gradient.indices] if isinstance(gradient, tf.IndexedSlices) else [gradient]


def _assembled(gradient: Any, parts: Iterator[tf.Tensor]) -> Any:
    """A gradient of the given one's form, made of reduced parts."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(next(parts), next(parts), gradient.dense_shape)
    return None if gradient is None else next(parts)


def _row(like: Any, sparse: bool) -> tuple[tuple[int, ...], str]:
    """The shape of a gradient and its type."""
    shape, kind = tf.TensorShape(like.shape), tf.as_dtype(like.dtype).name
    extents = (-1,) if shape.rank is None else tuple(-1 if extent is None else extent for extent in shape)
    return extents, f"{kind} (sparse)" if sparse else kind


class _Group(GradientGroup):
    """Raises TensorFlow's errors where it is executed eagerly."""

    def reduce(self, *arguments: Any) -> None:
        try:
            super().reduce(*arguments)
        except Exception as error:
            calls.raise_translated(error)


@functools.lru_cache(maxsize=64)
def _group(
    rows: _Rows, op: int, predivide: float, process_set: ProcessSet, groups: tuple[tuple[str, ...], ...], prefix: str
) -> GradientGroup:
    """A new tape is made for each step; what belongs to its variables is kept."""
    named = {name: (shape, kind) for name, shape, kind in rows}
    return _Group(named, op, predivide, process_set, groups, prefix)


def _divided(gradient: Any, size: int) -> Any:
    """A gradient that is not reduced, divided by the number of ranks, so that it weighs as much as an averaged one."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / np.asarray(size, gradient.values.dtype.as_numpy_dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / np.asarray(size, gradient.dtype.as_numpy_dtype)
