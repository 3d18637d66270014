"""Everything that this package uses of JAX's private modules and of modules that moved between its releases.

Ordered effects are private in all releases: see jax/_src/effects.py.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from jax._src import dispatch, effects
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

try:
    from jax.ffi import abstract_token  # since 0.11
except ImportError:
    from jax._src.core import abstract_token


class CollectiveEffect(effects.Effect):  # type: ignore[misc]
    """Calls that have it run in the program's order."""

    def __str__(self) -> str:
        return "Collective"


for _allowed in (
    effects.lowerable_effects,
    effects.ordered_effects,
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
):
    _allowed.add_type(CollectiveEffect)
ordered_effect = CollectiveEffect()


def lower_with_token(ctx: Any, lower: Any, operands: Any, **attributes: Any) -> list[Any]:
    """Lower to a call that takes the effect's token behind its operands, and returns it behind its results.

    Args:
        ctx: of the lowering rule.
        lower: a lowering rule for a context with these tokens.
    """
    inner = ctx.replace(avals_in=(*ctx.avals_in, abstract_token), avals_out=(*ctx.avals_out, abstract_token))
    results: list[Any]
    *results, token = lower(inner, *operands, ctx.tokens_in.get(ordered_effect), **attributes)
    ctx.set_tokens_out(mlir.TokenSet({ordered_effect: token}))
    return results


def primitive(
    name: str, evaluate: Any, lower: Any, batch: Any = None, *, multiple_results: bool = False, cacheable: bool = True
) -> Primitive:
    """A primitive with its rules; it is lowered for CPUs only.

    Args:
        evaluate: returns the shapes and element types of the results, and the effects.
        cacheable: False: `lower` is called for every use of it, as it depends on where its operands come from.
    """
    made: Primitive = Primitive(name)
    made.multiple_results = multiple_results
    made.def_impl(functools.partial(dispatch.apply_primitive, made))
    made.def_effectful_abstract_eval(evaluate)
    always_cached = "cacheable" not in inspect.signature(mlir.register_lowering).parameters  # before 0.7
    mlir.register_lowering(made, lower, platform="cpu", **({} if cacheable or always_cached else {"cacheable": False}))
    if batch is not None:
        batching.primitive_batchers[made] = batch
    return made


def is_kept(operand: Any) -> bool:
    """Return whether a lowering rule's operand is an argument of the compiled function that its caller keeps."""
    function = getattr(operand.owner, "owner", None)  # of a block; other operands are results of operations
    if function is None or function.operation.name != "func.func" or function.name.value != "main":
        return False
    if "arg_attrs" not in function.attributes:
        return True
    attributes = function.arg_attrs[operand.arg_number]
    return not any(name in attributes for name in ("tf.aliasing_output", "jax.buffer_donor"))


def lower_to_python(ctx: Any, function: Any, operands: Any) -> list[Any]:
    """Lower to a call of a Python function that takes NumPy arrays and returns a tuple of them."""
    results, token, _ = mlir.emit_python_callback(
        ctx, function, ctx.tokens_in.get(ordered_effect), list(operands), list(ctx.avals_in), list(ctx.avals_out),
        has_side_effect=True,
    )  # fmt: skip
    ctx.set_tokens_out(mlir.TokenSet({ordered_effect: token}))
    return list(results)


def forget_failure() -> None:
    """Allow further calls after one has failed: JAX keeps its error, and raises it again for every later call."""
    dispatch.runtime_tokens.clear()
