"""Data-parallel training: gradients that are reduced over the ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax

from pycollective import checks
from pycollective.hvd.arguments import Average
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.jax.compression import Compression
from pycollective.jax.trees import grouped_allreduce

if TYPE_CHECKING:
    import optax

__all__ = ["DistributedOptimizer", "distributed_value_and_grad", "reduce_gradients"]


def distributed_value_and_grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    op: int = Average,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
    **options: Any,
) -> Callable[..., Any]:
    """`jax.value_and_grad` of which values and gradients are reduced over the ranks, in one fused call.

    If the function's value is the mean over this rank's rows of a batch, and ranks have equally many, the result is
    value and gradient of the mean over all rows.

    Args:
        function, argnums, has_aux, options: as for `jax.value_and_grad`; auxiliary values are this rank's.
        op, compression, process_set: see `grouped_allreduce`; the value is not compressed.

    Returns:
        a function with the results of `jax.value_and_grad`, to be called by all ranks.

    Raises:
        as `grouped_allreduce`, when it is called.
    """
    compute = jax.value_and_grad(function, argnums, has_aux, **options)

    @functools.wraps(function)
    def value_and_grad(*args: Any, **kwargs: Any) -> Any:
        value, gradients = compute(*args, **kwargs)
        own, aux = value if has_aux else (value, None)
        gradients, contexts = _compress(gradients, compression)
        reduced = grouped_allreduce({"value": own, "gradients": gradients}, op, process_set=process_set)
        gradients = _decompress(reduced["gradients"], contexts, compression)
        return ((reduced["value"], aux) if has_aux else reduced["value"]), gradients

    return value_and_grad


def _compress(tree: Any, compression: Any) -> tuple[Any, list[Any]]:
    leaves, treedef = jax.tree_util.tree_flatten(tree)
    pairs = [(leaf, None) if _is_float0(leaf) else compression.compress(leaf) for leaf in leaves]
    return jax.tree_util.tree_unflatten(treedef, [leaf for leaf, _ in pairs]), [context for _, context in pairs]


def _decompress(tree: Any, contexts: list[Any], compression: Any) -> Any:
    leaves, treedef = jax.tree_util.tree_flatten(tree)
    whole = [
        leaf if _is_float0(leaf) else compression.decompress(leaf, context)
        for leaf, context in zip(leaves, contexts, strict=True)
    ]
    return jax.tree_util.tree_unflatten(treedef, whole)


def _is_float0(leaf: Any) -> bool:
    return bool(leaf.dtype == jax.dtypes.float0)


def reduce_gradients(
    op: int = Average,
    *,
    compression: Any = Compression.none,
    predivide: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> optax.GradientTransformation:
    """A transformation of optax that reduces gradients over the ranks, for `optax.chain`.

    Args:
        op, compression, predivide, process_set: see `grouped_allreduce`.
    """
    import optax

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        reduced = grouped_allreduce(updates, op, compression=compression, predivide=predivide, process_set=process_set)
        return reduced, state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def DistributedOptimizer(
    optimizer: optax.GradientTransformation,
    *,
    op: int = Average,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> optax.GradientTransformationExtraArgs:
    """An optimizer of optax that takes gradients reduced over the ranks.

    Args:
        optimizer: any gradient transformation of optax, e.g. `optax.sgd(0.1)`.
        op, compression, process_set: see `grouped_allreduce`.
        backward_passes_per_step: gradients to average on each rank before they are reduced, by `optax.MultiSteps`.
        gradient_predivide_factor: the part of the division by the number of ranks that is done before the sum.

    Returns:
        a gradient transformation, whose state is of optax's usual form. All ranks call its `update`.

    Raises:
        TypeError, ValueError: arguments are invalid.
    """
    import optax

    if not hasattr(optimizer, "init") or not hasattr(optimizer, "update"):
        checks.refuse_type("optimizer", "a gradient transformation of optax", optimizer)
    passes = checks.integer(backward_passes_per_step, "backward_passes_per_step", 1)
    predivide = checks.number(gradient_predivide_factor, "gradient_predivide_factor")
    if predivide != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor is supported with op=Average only")
    reducing = reduce_gradients(op, compression=compression, predivide=predivide, process_set=process_set)
    chained = optax.with_extra_args_support(optax.chain(reducing, optimizer))
    if passes == 1:
        return chained
    steps = optax.MultiSteps(chained, passes)
    return optax.GradientTransformationExtraArgs(steps.init, steps.update)
