"""Calls from inside a compiled JAX function: handlers of XLA's custom calls, or Python callbacks if it takes none."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.core import ShapedArray

from pycollective import _core
from pycollective.hvd import graph_call
from pycollective.hvd.graph_call import Start
from pycollective.jax import private

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


def call(start: Start, inputs: Sequence[Any]) -> list[jax.Array]:
    """Call `start` each time that the traced function runs, and wait for its results.

    The results have the shapes and element types of the inputs, which are arrays or tracers. All calls run in the
    program's order, which is the same on all ranks.

    Raises:
        jax.errors.JaxRuntimeError: when the function runs: what `start` reported, with its text.
    """
    return list(_call_p.bind(*map(jnp.asarray, inputs), start=start))


def _evaluate(*inputs: Any, start: Start) -> tuple[Any, Any]:
    return [ShapedArray(x.shape, x.dtype) for x in inputs], {private.ordered_effect}


def _lower(ctx: Any, *operands: Any, start: Start) -> list[Any]:
    if problem():
        return private.lower_to_python(ctx, blocking(start, ctx.avals_out), operands)
    return private.lower_with_token(ctx, lowering(PYTHON), operands, call=np.int64(_core.jax_add_start(start)))


_call_p = private.primitive("pycollective_call", _evaluate, _lower, multiple_results=True)
