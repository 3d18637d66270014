"""The handlers of XLA's custom calls, and the way in where XLA does not take them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np

from pycollective import _core
from pycollective.hvd import graph_call
from pycollective.hvd.graph_call import Start

COLLECTIVE, PYTHON = "pycollective_collective", "pycollective_python"
_TYPES = {
    1: np.bool_,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.uint8,
    7: np.uint16,
    8: np.uint32,
    9: np.uint64,
    10: np.float16,
    11: np.float32,
    12: np.float64,
    15: np.complex64,
    16: ml_dtypes.bfloat16,
    18: np.complex128,
    19: ml_dtypes.float8_e5m2,
    20: ml_dtypes.float8_e4m3fn,
    33: getattr(ml_dtypes, "float8_e8m0fnu", None),
}
"""XLA's numbers of the element types (XLA_FFI_DataType)."""


@functools.cache
def problem() -> str:
    """Why XLA does not take the handlers; empty if it does. Registers them when first called.

    Where it does not, calls go through JAX's Python callbacks, which copy the arrays and take the interpreter's lock.
    """
    types = {number: np.dtype(element) for number, element in _TYPES.items() if element is not None}
    try:
        for name, handler in _core.jax_handlers(types, described).items():
            jax.ffi.register_ffi_target(name, handler, platform="cpu")
    except Exception as error:
        reason = f"XLA of JAX {jax.__version__} refuses the handlers of its custom calls ({error})"
        warnings.warn(f"{reason}: collectives inside jit take the slower Python callbacks", stacklevel=2)
        return reason
    return ""


def described(error: BaseException) -> str:
    """The text of an error that XLA reports: the name of its class and its message."""
    return f"{type(error).__name__}: {error}"


def lowering(target: str, in_place: bool = False) -> Any:
    """A lowering rule to a custom call, which the compiler must not move, merge or drop.

    Args:
        target: the handler's name.
        in_place: the first result takes the first operand's memory; the compiler first copies an operand that is
            still needed.
    """
    return jax.ffi.ffi_lowering(target, has_side_effect=True, operand_output_aliases={0: 0} if in_place else None)


def blocking(start: Start, avals: Sequence[Any]) -> Any:
    """A function for JAX's Python callbacks: it takes arrays, and returns those of `avals`."""
    dtypes = [np.dtype(aval.dtype) for aval in avals]

    def run(*arrays: Any) -> tuple[Any, ...]:
        return tuple(graph_call.run(start, [np.asarray(array) for array in arrays], dtypes))

    return run
