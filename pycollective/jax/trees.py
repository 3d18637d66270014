"""Collectives of pytrees: all leaves in one call, fused by the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pycollective import checks
from pycollective.hvd import operations
from pycollective.hvd.arguments import OPS, Adasum, Average, compressor
from pycollective.hvd.basics import engine_of
from pycollective.hvd.gradients.agreement import DENSE, GradientAgreement, Rows
from pycollective.hvd.gradients.gradient_group import GradientGroup
from pycollective.hvd.graph_call import GraphCall, Start
from pycollective.hvd.handles import internal_errors
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.jax import handlers, planned
from pycollective.jax.compression import Compression

__all__ = ["broadcast_parameters", "grouped_allreduce"]


def grouped_allreduce(
    tree: Any,
    op: int = Average,
    *,
    compression: Any = Compression.none,
    predivide: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Collective, eagerly or inside jit: reduce all arrays of a pytree over the ranks, in one fused call.

    Each call first compares the names, shapes and element types of the leaves. Calls run in the program's order. The
    bits of the result do not depend on how arrays are fused (HOROVOD_FUSION_THRESHOLD). It has no derivative.

    Args:
        tree: arrays and numbers. None and leaves of type float0 (gradients of integers) are returned as they are.
        op: Average, Sum, Min, Max, Product or Adasum.
        compression: how the arrays are sent, see Compression.
        predivide: with Average, the part of the division by the number of ranks that is done before the sum.
        process_set: the participating ranks.

    Returns:
        a tree of the same structure, shapes and element types.

    Raises:
        ValueError, TypeError: when traced: invalid arguments, or a leaf that is not an array.
        jax.errors.JaxRuntimeError: when it runs, with the text of MismatchError (the ranks' trees differ, on every
            rank) or HorovodInternalError (a rank has been lost).
    """
    if op not in OPS and op != Adasum:
        checks.refuse_value("op", "Average, Sum, Adasum, Min, Max or Product", op)
    checks.instance(process_set, "process_set", ProcessSet, "a ProcessSet")
    compressor(compression)
    engine_of(process_set)
    names, leaves, treedef = _flatten(tree)
    sent = {name: compression.compress(leaf) for name, leaf in _arrays(names, leaves).items()}
    if sent:
        arrays = [array for array, _ in sent.values()]
        group = GradientGroup(_rows(sent, arrays), op, predivide, process_set, prefix="jax")

        def start(call: GraphCall) -> None:
            group.start(call.inputs, _outputs(call), call.done)

        reduced = dict(zip(sent, handlers.call(start, arrays), strict=True))
        leaves = [
            compression.decompress(reduced[name], sent[name][1]) if name in reduced else leaf
            for name, leaf in zip(names, leaves, strict=True)
        ]
    return jax.tree_util.tree_unflatten(treedef, leaves)


def broadcast_parameters(tree: Any, root_rank: int = 0, *, process_set: ProcessSet = global_process_set) -> Any:
    """Collective, eagerly or inside jit: the root's pytree, on every rank.

    Args:
        tree: arrays and numbers, of the same names, shapes and element types on every rank: parameters, or the state of
            an optimizer of optax.
        root_rank: the rank whose values are broadcast, among all ranks.
        process_set: the participating ranks.

    Returns:
        a tree of the same structure; numbers become arrays.

    Raises:
        as `grouped_allreduce`; ValueError: root_rank is not in the process set.
    """
    checks.instance(process_set, "process_set", ProcessSet, "a ProcessSet")
    operations.Broadcast(root_rank).require(process_set)
    names, leaves, treedef = _flatten(tree)
    sent = _arrays(names, leaves)
    if not sent:
        return tree
    arrays = list(sent.values())
    start = _broadcasts(_rows(sent, arrays), root_rank, process_set)
    received = dict(zip(sent, handlers.call(start, arrays), strict=True))
    leaves = [received.get(name, leaf) for name, leaf in zip(names, leaves, strict=True)]
    return jax.tree_util.tree_unflatten(treedef, leaves)


def _flatten(tree: Any) -> tuple[list[str], list[Any], Any]:
    rows, treedef = jax.tree_util.tree_flatten_with_path(tree)
    return [jax.tree_util.keystr(path) for path, _ in rows], [leaf for _, leaf in rows], treedef


def _arrays(names: Sequence[str], leaves: Sequence[Any]) -> dict[str, Any]:
    """The leaves that are communicated, by name."""
    arrays = {}
    for name, leaf in zip(names, leaves, strict=True):
        if getattr(leaf, "dtype", None) == jax.dtypes.float0:
            continue
        try:
            arrays[name] = jnp.asarray(leaf)
        except (TypeError, ValueError):
            checks.refuse_type(f"the leaf {name}", "an array or a number", leaf)
        planned.checked(arrays[name], f"the leaf {name}")
    return arrays


def _rows(names: Any, arrays: Sequence[Any]) -> Rows:
    return {name: (array.shape, str(array.dtype)) for name, array in zip(names, arrays, strict=True)}


def _outputs(call: GraphCall) -> list[Any]:
    return [call.output(number, array.shape) for number, array in enumerate(call.inputs)]


def _broadcasts(rows: Rows, root_rank: int, process_set: ProcessSet) -> Start:
    agreement = GradientAgreement("jax.parameters", rows, process_set)

    def start(call: GraphCall) -> None:
        with internal_errors():
            agreement.reach([DENSE] * len(rows))
            items = [
                operations.broadcast(x, out, root_rank, f"broadcast.jax.parameters.{name}", process_set)
                for name, x, out in zip(rows, call.inputs, _outputs(call), strict=True)
            ]
            engine_of(process_set).run(items)
        call.done(None)

    return start
