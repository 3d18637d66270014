"""Optimizers of torch for large batches: LARS, LARC, LAMB and NovoGrad; alone, with DistributedOptimizer or with DDP.

    from pycollective.torch.optimizers import LAMB

    plain = [p for p in model.parameters() if p.dim() < 2]       # biases and the parameters of norms
    layers = [p for p in model.parameters() if p.dim() >= 2]
    optimizer = LAMB([{"params": layers, "weight_decay": 0.01}, {"params": plain, "adapt": False}], lr=0.002)

The rules are the functions of `pycollective.optim.rules`, which has the formulas and their sources. A layer is one
parameter as the optimizer sees it: a full parameter with DDP and with fully_shard (DTensor), but a flat piece of many
with FullyShardedDataParallel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from pycollective.optim.rules import Rule, apply, complete, defaults, lamb, larc, lars, novograd


class RuleOptimizer(torch.optim.Optimizer):
    """A rule as an optimizer of torch: subclasses set `rule`. Its options are those of the parameter groups."""

    rule: Rule

    def __init__(self, params: Any, **options: Any) -> None:
        """
        Args:
            params: parameters, or groups of them with their own options, as for any torch optimizer.
            options: the rule's options, by keyword, for groups that do not override them.

        Raises:
            ValueError, TypeError: options that are invalid for the rule; complex parameters.
        """
        super().__init__(params, complete(type(self).rule, options))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group like torch, with the group's options checked."""
        super().add_param_group(param_group)
        try:
            self._options(self.param_groups[-1])
            if any(not p.is_floating_point() for p in self.param_groups[-1]["params"]):
                raise TypeError(f"{type(self).__name__} takes parameters of real floating-point types")
        except Exception:
            del self.param_groups[-1]
            raise

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step on the gradients; parameters without a gradient are unchanged.

        Args:
            closure: computes the loss and its gradients.

        Returns:
            the loss that the closure returned.

        Raises:
            RuntimeError: a sparse gradient; no parameter has been changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        todo = [[p for p in group["params"] if p.grad is not None] for group in self.param_groups]
        if any(p.grad.layout != torch.strided for parameters in todo for p in parameters):
            raise RuntimeError(f"{type(self).__name__} takes no sparse gradients")
        with torch.no_grad():
            for group, parameters in zip(self.param_groups, todo, strict=True):
                options = self._options(group)
                for p in parameters:
                    apply(type(self).rule, p.detach(), p.grad.detach(), self.state[p], options)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load like torch, but states stay in float32 where parameters have 16 bits."""
        super().load_state_dict(state_dict)
        numbers = itertools.chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        parameters = itertools.chain.from_iterable(group["params"] for group in self.param_groups)
        for number, p in zip(numbers, parameters, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                if isinstance(value, torch.Tensor):
                    self.state[p][name] = value.to(p.device)

    def _options(self, group: dict[str, Any]) -> dict[str, Any]:
        return complete(type(self).rule, {name: group[name] for name in defaults(type(self).rule)})


class LARS(RuleOptimizer):
    """Layer-wise adaptive rates for momentum SGD: `pycollective.optim.rules.lars`.

    Options: lr, momentum=0.9, weight_decay=0, trust_coefficient=0.001, adapt=True.
    """

    rule = staticmethod(lars)


class LARC(RuleOptimizer):
    """LARS with lr as the limit of a layer's rate: `pycollective.optim.rules.larc`.

    Options: lr, momentum=0.9, weight_decay=0, trust_coefficient=0.02, clip=True, eps=1e-8, adapt=True.
    """

    rule = staticmethod(larc)


class LAMB(RuleOptimizer):
    """Adam's steps, scaled to the norm of the layer's weights: `pycollective.optim.rules.lamb`.

    Options: lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0, adapt=True.
    """

    rule = staticmethod(lamb)


class NovoGrad(RuleOptimizer):
    """Momentum on layer-wise normalized gradients: `pycollective.optim.rules.novograd`.

    Options: lr, betas=(0.95, 0.98), eps=1e-8, weight_decay=0.
    """

    rule = staticmethod(novograd)
