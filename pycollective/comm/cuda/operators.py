"""A user's own reduction operator on GPU arrays."""

from __future__ import annotations

from typing import Any

from pycollective.comm.operators import Op
from pycollective.errors import CommunicatorError


def compile_for_device(op: Op, dtype: str) -> Any:
    """The operator, compiled for an element type, as `_cuda.Team.plan` takes it.

    Raises:
        CommunicatorError: always, for now.
    """
    raise CommunicatorError(
        f"operator {op.name}: a user's own operator works on CPU arrays only in this version; reduce {dtype} arrays "
        "on the GPU with a built-in operator, or move them to the CPU"
    )
