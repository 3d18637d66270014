"""Calls of this library from inside a compiled JAX function."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir

from pycollective.hvd.graph_call import Start
from pycollective.jax import handlers, private

__all__ = ["call"]


def call(
    start: Start, inputs: Sequence[Any], results: Sequence[jax.ShapeDtypeStruct], *, ordered: bool = True
) -> list[jax.Array]:
    """Call `start` each time that the traced function runs, and wait for its results.

    Args:
        start: it must keep to the shapes and element types of `results`.
        inputs: arrays or tracers.
        results: shapes and element types of the results.
        ordered: keep the program's order among all ordered calls, which makes it the same on all ranks; without it the
            compiler may move or merge the call, and drops it if its results are not used.

    Raises:
        jax.errors.JaxRuntimeError: when the function runs: what `start` reported, with its text.
    """
    avals = tuple(ShapedArray(result.shape, result.dtype) for result in results)
    made = _call_p.bind(*map(jnp.asarray, inputs), start=start, results=avals, ordered=ordered)
    return list(made)


_call_p = Primitive("pycollective_call")
_call_p.multiple_results = True


def _evaluate(*inputs: Any, start: Start, results: Any, ordered: bool) -> tuple[Any, Any]:
    return results, {private.ordered_effect} if ordered else set()


def _lower(ctx: Any, *operands: Any, start: Start, results: Any, ordered: bool) -> list[Any]:
    if handlers.problem():
        return private.lower_to_python(ctx, handlers.blocking(start, results), operands, ordered)
    number = np.int64(handlers.add_start(start))
    if ordered:
        return private.lower_with_token(ctx, handlers.lowering(handlers.PYTHON), operands, call=number)
    return list(handlers.pure_lowering(handlers.PYTHON)(ctx, *operands, call=number))


_call_p.def_impl(functools.partial(private.apply_primitive, _call_p))
_call_p.def_effectful_abstract_eval(_evaluate)
mlir.register_lowering(_call_p, _lower, platform="cpu")
