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

from pycollective import _core
from pycollective.hvd.graph_call import Start
from pycollective.jax import handlers, private


def call(start: Start, inputs: Sequence[Any]) -> list[jax.Array]:
    """Call `start` each time that the traced function runs, and wait for its results.

    The results have the shapes and element types of the inputs, which are arrays or tracers. All calls run in the
    program's order, which is the same on all ranks.

    Raises:
        jax.errors.JaxRuntimeError: when the function runs: what `start` reported, with its text.
    """
    return list(_call_p.bind(*map(jnp.asarray, inputs), start=start))


_call_p = Primitive("pycollective_call")
_call_p.multiple_results = True


def _evaluate(*inputs: Any, start: Start) -> tuple[Any, Any]:
    return [ShapedArray(x.shape, x.dtype) for x in inputs], {private.ordered_effect}


def _lower(ctx: Any, *operands: Any, start: Start) -> list[Any]:
    if handlers.problem():
        return private.lower_to_python(ctx, handlers.blocking(start, ctx.avals_out), operands)
    number = np.int64(_core.jax_add_start(start))
    return private.lower_with_token(ctx, handlers.lowering(handlers.PYTHON), operands, call=number)


_call_p.def_impl(functools.partial(private.apply_primitive, _call_p))
_call_p.def_effectful_abstract_eval(_evaluate)
mlir.register_lowering(_call_p, _lower, platform="cpu")
