"""Maps torch's reduction operators to the core's."""

from __future__ import annotations

from typing import Any

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
