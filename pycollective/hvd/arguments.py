"""Arguments common to the operations of all frameworks: operators, factors, groups and compression."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pycollective import checks
from pycollective.hvd.gradients.compression import NoneCompressor
from pycollective.hvd.process_sets import ProcessSet, global_process_set

T = TypeVar("T")

Average, Sum, Adasum, Min, Max, Product = range(6)
OPS = {Average: "avg", Sum: "sum", Min: "min", Max: "max", Product: "prod"}
_NAMED = "Average, Sum, Adasum, Min, Max or Product"
"""The core's names."""


def compressor(compression: Any) -> Any:
    """
    Raises:
        TypeError: lacks the methods of a Compressor.
    """
    if not hasattr(compression, "compress") or not hasattr(compression, "decompress"):
        checks.refuse_type("compression", "Compression.none, .fp16, .bf16 or a Compressor", compression)
    return compression


def operator_name(op: Any) -> str:
    """The core's name of an operator other than Adasum.

    Raises:
        ValueError: not an operator.
    """
    try:
        return OPS[op]
    except (KeyError, TypeError):
        raise ValueError(f"op must be {_NAMED}, not {checks.shown(op)}") from None


def factor(given: Any, name: str) -> float:
    """A factor on inputs or results, a number of any library; NaN and infinity follow IEEE arithmetic."""
    return given if type(given) is float else checks.number(given, name, finite=False, nan=True)


def gradient_factors(op: int, predivide: float) -> tuple[float, float]:
    """The factors on each rank's gradient and on the result, of an optimizer with gradient_predivide_factor."""
    return (1 / predivide, predivide) if op == Average else (1.0, 1.0)


def groups_of(num_groups: Any, groups: Any) -> Any:
    """An optimizer's argument `groups`, or the one that it replaced: then it warns (DeprecationWarning)."""
    if checks.integer(num_groups, "num_groups") == 0:
        return groups
    warnings.warn("num_groups was replaced by groups", DeprecationWarning, stacklevel=3)
    return num_groups if groups is None else groups


def weights_of(local_layers: Any) -> list[Any]:
    """The trainable weights of a Keras layer, or of several; none of None.

    Raises:
        ValueError: something else.
    """
    layers = [local_layers] if hasattr(local_layers, "trainable_weights") else list(local_layers or ())
    if not all(hasattr(layer, "trainable_weights") for layer in layers):
        raise ValueError("local_layers must be Keras layers")
    return [weight for layer in layers for weight in layer.trainable_weights]


@dataclass(frozen=True)
class OptimizerOptions:
    """The arguments of a DistributedOptimizer, checked."""

    compression: Any = NoneCompressor
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    op: int = Average
    groups: int | Sequence[Sequence[Any]] | None = None
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError, TypeError: an argument is invalid, or two are incompatible.
        """
        compressor(self.compression)
        checks.flag(self.sparse_as_dense, "sparse_as_dense")
        checks.flag(self.average_aggregated_gradients, "average_aggregated_gradients")
        checks.flag(self.scale_local_gradients, "scale_local_gradients")
        checks.instance(self.process_set, "process_set", ProcessSet, "a ProcessSet")
        if checks.integer(self.backward_passes_per_step, "backward_passes_per_step") <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        if self.op != Adasum:
            operator_name(self.op)
        predivide = checks.number(self.gradient_predivide_factor, "gradient_predivide_factor")
        if predivide != 1.0 and self.op != Average:
            raise ValueError("gradient_predivide_factor is supported with op=Average only")
        if self.groups is not None and not isinstance(self.groups, (list, tuple)):
            checks.integer(self.groups, "groups", least=0)


def split_evenly(values: Sequence[T], parts: int) -> list[Sequence[T]]:
    """`parts` pieces of a list, in order, whose lengths differ by at most one; the longer ones first."""
    least, more = divmod(len(values), max(1, parts))
    starts = [least * i + min(i, more) for i in range(parts + 1)]
    return [values[start:end] for start, end in itertools.pairwise(starts)]


def op_number(op: Any) -> int:
    """The number of an operator, of any integer type.

    Raises:
        TypeError: not an integer.
    """
    try:
        return op if type(op) is int else checks.integer(op, "op")
    except TypeError:
        checks.refuse_type("op", _NAMED, op)


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[int | None, bool | None], int]:
    """A function (op, average) -> operator, for functions that take both the current argument and the old one.

    It raises ValueError if both are given, and warns (DeprecationWarning) if `average` is.

    Args:
        reduce_ops: has the attributes Average and Sum.
    """

    def operator_of(op: int | None, average: bool | None) -> int:
        if average is None:
            return int(reduce_ops.Average) if op is None else op_number(op)
        if op is not None:
            raise ValueError("op supersedes average: give only one of them")
        warnings.warn("average= was replaced by op=", DeprecationWarning, stacklevel=3)
        return int(reduce_ops.Average if checks.flag(average, "average") else reduce_ops.Sum)

    return operator_of
