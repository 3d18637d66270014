"""The primitives of the collectives: shapes, lowering, batching and derivatives.

What is linear in the ranks' arrays together has a derivative: its tangent is the same collective of the tangents. The
transposes are those of the map of all ranks' arrays to all ranks' results, but for allreduce: there every rank holds a
copy of one result, of which each computes the same cotangent, so that the transpose is the identity (as in mpi4jax).
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

from pycollective.jax import handlers, planned, private
from pycollective.jax.planned import PlannedCollective
from pycollective.schedule.collectives import CALLS

_LINEAR = ("sum", "avg")
"""Operators whose reductions are linear."""


def bind(call: PlannedCollective, x: Any) -> Any:
    """The result of a collective of an array; not of a send or a barrier."""
    return _COLLECTIVES[call.name].bind(x, call=call)


# -- one array in, one out ---------------------------------------------------------------------------------------------


def _evaluate(x: Any, *, call: PlannedCollective) -> tuple[Any, Any]:
    planned.checked(x, call.name)
    shape = planned.result_shape(call, x.shape)
    planned.plan(call, x.shape, str(x.dtype))
    sends = call.name == "send" and not call.receives
    return [] if sends else ShapedArray(shape, x.dtype), {private.ordered_effect}


def _lower(ctx: Any, x: Any, *, call: PlannedCollective) -> list[Any]:
    (aval,) = ctx.avals_in
    returns_x = call.name in ("reduce", "gather") and not call.is_root
    inner = ctx.replace(avals_out=()) if returns_x else ctx
    number = planned.plan(call, aval.shape, str(aval.dtype))
    in_place = call.name == "allreduce" and not private.is_kept(x)
    results = _lower_number(inner, (x,), number, planned.start_of(call), in_place)
    if not returns_x:
        return results
    ctx.set_tokens_out(inner.tokens_out)
    return [x]


def _lower_number(ctx: Any, operands: Any, number: int, start: Any, in_place: bool = False) -> list[Any]:
    if handlers.problem():
        return private.lower_to_python(ctx, handlers.blocking(start, ctx.avals_out), operands)
    lower = handlers.lowering(handlers.COLLECTIVE, in_place)
    return private.lower_with_token(ctx, lower, operands, call=np.int64(number))


def _batch(arguments: Any, axes: Any, *, call: PlannedCollective) -> tuple[Any, int]:
    (x,), (axis,) = arguments, axes
    if call.takes_blocks:
        x = jnp.moveaxis(x, axis, 1)  # behind the ranks' blocks
        return bind(call, x), 1 if call.name == "alltoall" else 0
    if call.name == "scatter":
        return bind(call, jnp.moveaxis(x, axis, 0)), 0
    adds_axis = call.name == "allgather" or (call.name == "gather" and call.is_root)
    return bind(call, x), axis + adds_axis


def _differentiate(primals: Any, tangents: Any, *, call: PlannedCollective) -> tuple[Any, Any]:
    _require_linear(call)
    (x,), (tangent,) = primals, tangents
    return bind(call, x), bind(call, ad.instantiate_zeros(tangent))


def _require_linear(call: PlannedCollective) -> None:
    if CALLS[call.name].reduces and call.op not in _LINEAR:
        raise NotImplementedError(f"{call.name} has a derivative for the operators sum and avg only, not for {call.op}")


def _transpose(cotangent: Any, x: Any, *, call: PlannedCollective) -> tuple[Any]:
    _require_linear(call)
    return (_TRANSPOSES[call.name](ad.instantiate_zeros(cotangent), x.aval, call),)


def _of(call: PlannedCollective, name: str) -> PlannedCollective:
    return PlannedCollective(name, call.comm, root=call.root)


def _average(x: Any, call: PlannedCollective) -> Any:
    return x / call.comm.size if call.op == "avg" else x


def _transpose_to_root(reverse: str, cotangent: Any, aval: Any, call: PlannedCollective) -> Any:
    """Transpose what gives the root a result, and others their own x: the root's cotangent by another collective."""
    own = _average(bind(_of(call, reverse), cotangent), call)
    return own if call.is_root else cotangent + own


def _transpose_from_root(reverse: str, cotangent: Any, aval: Any, call: PlannedCollective) -> Any:
    """Transpose what depends on the root's x alone."""
    total = bind(_of(call, reverse), cotangent)
    return total if call.is_root else jnp.zeros(aval.shape, aval.dtype)


def _transpose_scan(cotangent: Any, aval: Any, call: PlannedCollective) -> Any:
    return bind(_of(call, "allgather"), cotangent)[call.comm.rank :].sum(0)


_TRANSPOSES: dict[str, Any] = {
    "allreduce": lambda cotangent, aval, call: _copies_p.bind(cotangent, call=call),
    "reduce": functools.partial(_transpose_to_root, "broadcast"),
    "reduce_scatter": lambda cotangent, aval, call: _average(bind(_of(call, "allgather"), cotangent), call),
    "scan": _transpose_scan,
    "broadcast": functools.partial(_transpose_from_root, "reduce"),
    "allgather": lambda cotangent, aval, call: bind(_of(call, "reduce_scatter"), cotangent),
    "gather": functools.partial(_transpose_to_root, "scatter"),
    "scatter": functools.partial(_transpose_from_root, "gather"),
    "alltoall": lambda cotangent, aval, call: bind(call, cotangent),
}


def _collective(name: str) -> Primitive:
    primitive = private.primitive(name, _evaluate, _lower, _batch, cacheable=False)
    ad.primitive_jvps[primitive] = _differentiate
    ad.primitive_transposes[primitive] = _transpose
    return primitive


_COLLECTIVES = {name: _collective(name) for name in _TRANSPOSES}


# -- the transpose of allreduce: the transpose of which is allreduce ---------------------------------------------------

_copies_p: Primitive = private.primitive(
    "allreduce_transpose",
    lambda x, *, call: (ShapedArray(x.shape, x.dtype), set()),
    mlir.lower_fun(lambda x, *, call: _average(x, call), multiple_results=False),
    lambda arguments, axes, *, call: (_copies_p.bind(*arguments, call=call), axes[0]),
)
ad.deflinear2(_copies_p, lambda cotangent, x, *, call: [bind(call, ad.instantiate_zeros(cotangent))])


# -- messages ----------------------------------------------------------------------------------------------------------


def _batch_message(arguments: Any, axes: Any, *, call: PlannedCollective) -> tuple[Any, Any]:
    if call.receives:
        return recv_p.bind(*arguments, call=call), axes[0]
    return send_p.bind(*arguments, call=call), ()


send_p = private.primitive("send", _evaluate, _lower, _batch_message, multiple_results=True)
recv_p = private.primitive("recv", _evaluate, _lower, _batch_message)


def _evaluate_sendrecv(
    x: Any, like: Any, *, send: PlannedCollective, receive: PlannedCollective, forward: bool
) -> tuple[Any, Any]:
    planned.checked(x, "sendrecv")
    planned.checked(like, "sendrecv")
    planned.plan(send, x.shape, str(x.dtype))
    planned.plan(receive, like.shape, str(like.dtype))
    return ShapedArray(like.shape, like.dtype), {private.ordered_effect}


def _lower_sendrecv(
    ctx: Any, x: Any, like: Any, *, send: PlannedCollective, receive: PlannedCollective, forward: bool
) -> list[Any]:
    if forward:
        raise RuntimeError(
            "sendrecv has no forward-mode derivative: the tangent of what another rank sends is on that rank; use "
            "reverse mode (jax.grad, jax.vjp)"
        )
    sends, receives = (
        planned.plan(call, aval.shape, str(aval.dtype))
        for call, aval in zip((send, receive), ctx.avals_in, strict=True)
    )
    number = planned.plan_both(sends, receives)
    return _lower_number(ctx, (x, like), number, planned.start_of_both(send, receive))


def _batch_sendrecv(arguments: Any, axes: Any, **parameters: Any) -> tuple[Any, int]:
    size = next(x.shape[axis] for x, axis in zip(arguments, axes, strict=True) if axis is not None)
    moved = [
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(arguments, axes, strict=True)
    ]
    return sendrecv_p.bind(*moved, **parameters), 0


def _differentiate_sendrecv(primals: Any, tangents: Any, *, forward: bool, **calls: Any) -> tuple[Any, Any]:
    tangent = [ad.instantiate_zeros(each) for each in tangents]
    value = sendrecv_p.bind(*primals, forward=forward, **calls)
    return value, sendrecv_p.bind(*tangent, forward=not forward, **calls)


def _transpose_sendrecv(
    cotangent: Any, x: Any, like: Any, *, send: PlannedCollective, receive: PlannedCollective, forward: bool
) -> tuple[Any, Any]:
    """The cotangent of what was received returns to its sender."""
    template = jnp.zeros(x.aval.shape, x.aval.dtype)
    back = sendrecv_p.bind(
        ad.instantiate_zeros(cotangent),
        template,
        send=PlannedCollective("send", send.comm, root=receive.root, note=receive.note),
        receive=PlannedCollective("send", send.comm, root=send.root, note=send.note, receives=True),
        forward=not forward,
    )
    return back, (jnp.zeros(like.aval.shape, like.aval.dtype) if ad.is_undefined_primal(like) else None)


sendrecv_p = private.primitive("sendrecv", _evaluate_sendrecv, _lower_sendrecv, _batch_sendrecv)
ad.primitive_jvps[sendrecv_p] = _differentiate_sendrecv
ad.primitive_transposes[sendrecv_p] = _transpose_sendrecv


# -- barrier -----------------------------------------------------------------------------------------------------------


def _evaluate_barrier(*, call: PlannedCollective) -> tuple[Any, Any]:
    return [], {private.ordered_effect}


def _lower_barrier(ctx: Any, *, call: PlannedCollective) -> list[Any]:
    return _lower_number(ctx, (), planned.plan(call, (0,), "uint8"), planned.start_of(call))


barrier_p = private.primitive("barrier", _evaluate_barrier, _lower_barrier, multiple_results=True)
