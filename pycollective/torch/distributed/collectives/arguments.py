"""The arguments of a process group's methods, in the forms that torch's overloads allow, and its operators."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_RED = dist.ReduceOp.RedOpType
_NAMES = {
    _RED.SUM: "sum",
    _RED.AVG: "avg",
    _RED.PRODUCT: "prod",
    _RED.MIN: "min",
    _RED.MAX: "max",
    _RED.BAND: "band",
    _RED.BOR: "bor",
    _RED.BXOR: "bxor",
    _RED.PREMUL_SUM: "sum",
}
_ON_COMPLEX = frozenset((_RED.SUM, _RED.AVG, _RED.PREMUL_SUM))


def options(kind: type, given: Any, *more: Any) -> Any:
    """The options object: as passed, or made from the arguments of torch's shorter forms.

    Those are (tensor, root), (tensor, root, op) and (tensor, op), each optionally followed by a timedelta.
    """
    if given is not None and not isinstance(given, (int, dist.ReduceOp, _RED, timedelta)):
        return given
    made = kind()
    for value in (given, *more):
        if isinstance(value, timedelta):
            made.timeout = value
        elif isinstance(value, (dist.ReduceOp, _RED)):
            made.reduceOp = dist.ReduceOp(value) if isinstance(value, _RED) else value
        elif isinstance(value, int):
            made.rootRank = value
    return made


def one(given: Any, what: str) -> Any:
    """The tensor (or list of tensors) of a call, which torch passes in a list of one.

    Raises:
        ValueError: several tensors, which were for several GPUs of one process.
    """
    if isinstance(given, torch.Tensor):
        return given
    if len(given) != 1:
        raise ValueError(f"{what} takes one tensor per call, not {len(given)}")
    return given[0]


def many(given: Any, size: int, what: str) -> Sequence[Any]:
    """A list of one tensor for each rank; torch passes it directly or in a list of one."""
    if len(given) == 1 and not isinstance(given[0], torch.Tensor):
        given = given[0]
    if len(given) != size:
        raise ValueError(f"{what}: a list of {len(given)} tensors for {size} ranks")
    return list(given)


def same_size(x: Any, out: Any, what: str) -> None:
    """Raise ValueError if an output has another number of elements than the input."""
    if x.numel() != out.numel():
        raise ValueError(f"{what}: {x.numel()} elements for an output of {out.numel()}")


def kind_of(op: Any) -> Any:
    """The RedOpType of a ReduceOp, without its factor."""
    return op.__getstate__()[0] if isinstance(op, dist.ReduceOp) else op


def operator(op: Any, x: Any) -> tuple[str, tuple[float, float] | None]:
    """(core's name, (factor before, factor after) or None) of a ReduceOp for tensors like x.

    Raises:
        TypeError: the operator is not defined for complex numbers.
    """
    kind = kind_of(op)
    if x.is_complex() and kind not in _ON_COMPLEX:
        raise TypeError(f"{kind.name} is not defined for {x.dtype}")
    if kind == _RED.PREMUL_SUM:
        return "sum", (float(op.__getstate__()[1]), 1.0)
    return _NAMES[kind], None
