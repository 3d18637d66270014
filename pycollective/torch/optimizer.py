"""DistributedOptimizer: any torch optimizer, on gradients that are reduced over all ranks during the backward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from pycollective import checks
from pycollective.hvd.arguments import OPS, Adasum, Average, compressor, groups_of, split_evenly
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.torch.compression import Compression
from pycollective.torch.hvd.optimizer_methods import AdasumMethods, OptimizerMethods


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """An optimizer of the same class that steps on gradients reduced over all ranks.

    Each gradient is submitted to the engine as soon as backward has computed it. The engine fuses gradients that are
    ready at the same time; parameters that the next forward pass needs first are reduced first. With the default
    topology the weights are bitwise identical however gradients are fused.

    All ranks create their optimizers in the same order, which determines whose gradients belong together.

    Args:
        optimizer: any torch optimizer; the new one shares its parameters, options and state. One that is already
            distributed is unwrapped first. Any other distributed optimizer of one of the parameters refuses to step
            from now on.
        named_parameters: names of the parameters, the same on all ranks: model.named_parameters().
        compression: how gradients are compressed for communication, see Compression.
        backward_passes_per_step: backward passes to accumulate before gradients are reduced.
        op: Average, Sum, Min, Max or Product of the gradients; Adasum of the ranks' steps.
        gradient_predivide_factor: the part of the division by the number of ranks that is done before the sum.
        num_groups: old name of `groups`.
        groups: number of groups of gradients to reduce together, or the groups themselves.
        sparse_as_dense: reduce sparse gradients as dense ones.
        process_set: the participating ranks.

    Raises:
        ValueError: names are missing, duplicated or not names; arguments are incompatible.
    """
    checks.instance(optimizer, "optimizer", torch.optim.Optimizer, "a torch optimizer")
    if hasattr(optimizer, "gossip_steps"):
        raise ValueError("this optimizer is distributed already, by GossipOptimizer")
    compressor(compression)
    if checks.integer(backward_passes_per_step, "backward_passes_per_step") <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    gradient_predivide_factor = checks.number(gradient_predivide_factor, "gradient_predivide_factor")
    groups = groups_of(num_groups, groups)
    sparse_as_dense = checks.flag(sparse_as_dense, "sparse_as_dense")
    checks.instance(process_set, "process_set", ProcessSet, "a ProcessSet")
    if type(op) is not int:
        op = checks.integer(op, "op")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor is supported with op=Average only")
    if op not in OPS and op != Adasum:
        raise ValueError(f"op must be Average, Sum, Adasum, Min, Max or Product, not {op!r}")
    named = unique_names(optimizer, named_parameters)
    group_of = _group_parameters([p for _, p in named if p.requires_grad], groups)
    base = optimizer.wrapped_class if isinstance(optimizer, OptimizerMethods) else type(optimizer)
    made = with_methods(AdasumMethods if op == Adasum else OptimizerMethods, base, optimizer)
    made.start_reducing(
        optimizer, named, compression, backward_passes_per_step, op, gradient_predivide_factor, group_of,
        sparse_as_dense, process_set,
    )  # fmt: skip
    return made


def with_methods(mixed_in: type, base: type, optimizer: torch.optim.Optimizer) -> Any:
    """An optimizer of a subclass of `base` with the methods of `mixed_in`; it shares parameters, options and state."""
    made_of: Any = type(base.__name__, (mixed_in, base), {"wrapped_class": base, "__module__": base.__module__})
    made: Any = made_of.__new__(made_of)
    made.__dict__.update(optimizer.__dict__)
    made.__dict__.pop("step", None)  # a scheduler may have wrapped the optimizer's
    return made


def unique_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> list[tuple[str, torch.Tensor]]:
    """(name, parameter) for the optimizer's parameters, each once.

    Raises:
        ValueError: names are missing, duplicated or not names.
    """
    own = [p for group in optimizer.param_groups for p in group["params"]]
    if named_parameters is None:
        groups = enumerate(optimizer.param_groups)
        return [(f"noname.{i}.{j}", p) for i, group in groups for j, p in enumerate(group["params"])]
    named = checks.items(named_parameters, "named_parameters", "(name, parameter)")
    if not all(isinstance(row, tuple) and len(row) == 2 for row in named):
        raise ValueError("named_parameters are tuples (name, parameter), as model.named_parameters() gives them")
    duplicates = [str(name) for name, count in Counter(name for name, _ in named).items() if count > 1]
    if duplicates:
        raise ValueError(f"parameter names must be unique; found more than once: {', '.join(duplicates)}")
    known = {id(p) for _, p in named}
    missing = [p for p in own if id(p) not in known]
    if missing:
        shapes = ", ".join(str(tuple(p.shape)) for p in missing[:5])
        raise ValueError(f"not in named_parameters, but of the optimizer: {len(missing)} parameters (shapes: {shapes})")
    mine = {id(p) for p in own}
    unique: dict[torch.Tensor, str] = {}
    for name, p in named:  # a tied parameter has its first name
        if id(p) in mine:
            unique.setdefault(p, name)
    return [(name, p) for p, name in unique.items()]


def _group_parameters(
    trained: list[torch.Tensor], groups: int | Sequence[Sequence[torch.Tensor]] | None
) -> dict[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Parameter -> all parameters of its group; parameters without a group are absent."""
    if groups is None:
        return {}
    if hasattr(groups, "__index__") and not isinstance(groups, torch.Tensor):
        groups = checks.integer(groups, "groups")
        if groups < 0:
            raise ValueError("groups must be a number of groups, or the groups themselves as lists of tensors")
        parts = split_evenly(trained, groups)
    else:
        parts = [checks.items(group, "groups", "lists of tensors") for group in checks.items(groups, "groups", "lists")]
        members = [p for part in parts for p in part]
        if not all(isinstance(p, torch.Tensor) for p in members):
            raise ValueError("groups are lists of tensors")
        if len({id(p) for p in members}) < len(members):
            raise ValueError("a parameter can be in one group only")
    known = set(map(id, trained))
    tuples = [tuple(p for p in part if id(p) in known) for part in parts]
    return {p: part for part in tuples for p in part}
