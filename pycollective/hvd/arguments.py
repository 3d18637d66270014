"""Arguments that operations of all frameworks share: operators, factors and compression."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from pycollective import checks

Average, Sum, Adasum, Min, Max, Product = range(6)
OPS = {Average: "avg", Sum: "sum", Min: "min", Max: "max", Product: "prod"}
"""The core's names."""


def compressor(compression: Any) -> Any:
    """
    Raises:
        TypeError: not like those of `Compression`.
    """
    if not hasattr(compression, "compress") or not hasattr(compression, "decompress"):
        checks.refuse_type("compression", "Compression.none, .fp16, .bf16 or a Compressor", compression)
    return compression


def operator_name(op: Any) -> str:
    """The core's name of an operator that is not Adasum.

    Raises:
        ValueError: no operator.
    """
    try:
        return OPS[op]
    except (KeyError, TypeError):
        raise ValueError(f"op is Average, Sum, Adasum, Min, Max or Product, not {checks.shown(op)}") from None


def factor(given: Any, name: str) -> float:
    """A factor on inputs or results, of any library; NaN and infinity follow IEEE arithmetic."""
    return given if type(given) is float else checks.number(given, name, finite=False, nan=True)


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[int | None, bool | None], int]:
    """A function (op, average) -> operator, for functions that take both the argument of today and the old one.

    It raises ValueError if both are given, and warns (DeprecationWarning) if `average` is.

    Args:
        reduce_ops: has the attributes Average and Sum.
    """

    def operator_of(op: int | None, average: bool | None) -> int:
        if average is None:
            return int(reduce_ops.Average) if op is None else op if type(op) is int else checks.integer(op, "op")
        if op is not None:
            raise ValueError("op supersedes average: give only one of them")
        warnings.warn("average= was replaced by op=", DeprecationWarning, stacklevel=3)
        return int(reduce_ops.Average if checks.flag(average, "average") else reduce_ops.Sum)

    return operator_of
