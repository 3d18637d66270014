"""The DistributedOptimizer of tf_keras (Keras 2): subclasses for both of its families of optimizers."""

from __future__ import annotations

from typing import Any

import tf_keras

from pycollective.hvd.arguments import OptimizerOptions
from pycollective.keras import backends
from pycollective.keras.aggregation import Aggregation
from pycollective.keras.reduction import GradientReduction, ReducingOptimizer, copy_exclusions, subclass

OPTIMIZERS = (tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer)
Pairs = list[tuple[Any, Any]]
"""Gradients with their variables."""


class Reducing(ReducingOptimizer):
    """Reduces gradients where they are computed (`minimize`, and so `fit`), or else in `apply_gradients`."""

    called_by = "minimize"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.begin()

    def begin(self) -> None:
        """Create what this class adds to an optimizer."""
        self.reduction = GradientReduction(self.options, backends.named("tensorflow"))
        self._reduced = False
        passes = self.options.backward_passes_per_step
        self._agg_helper = Aggregation(self.options, self.reduction) if passes > 1 else None
        self.weights_to_set: list[Any] | None = None  # once the optimizer's variables have been created

    def _reduce(self: Any, pairs: Any) -> Pairs:
        gradients, variables = zip(*pairs, strict=True)
        if self._agg_helper is None:
            reduced = self.reduction(gradients, variables)
        elif getattr(self, "_is_wrapped_by_loss_scale_optimizer", False):
            raise ValueError("backward_passes_per_step > 1 cannot be combined with a LossScaleOptimizer of tf_keras")
        else:
            reduced = self._agg_helper.compute(gradients, variables)
        return list(zip(reduced, variables, strict=True))

    def _computed(self, pairs: Any) -> Pairs:
        """Reduced gradients that the next apply_gradients must not reduce again."""
        reduced = self._reduce(pairs)
        self._reduced = True
        return reduced

    def get_gradients(self: Any, loss: Any, params: Any) -> Any:
        """Collective: the reduced gradients."""
        pairs = zip(super().get_gradients(loss, params), params, strict=True)
        return [gradient for gradient, _ in self._computed(pairs)]

    def _aggregated(self, pairs: Any) -> Pairs:
        """Called by LossScaleOptimizers too, before they test whether gradients are finite."""
        before, self._reduced = self._reduced, False
        return list(pairs) if before else self._reduce(pairs)

    def _apply(self: Any, pairs: Any, name: str | None, aggregate: bool, **as_they_are: Any) -> Any:
        pairs = list(pairs)
        if aggregate and pairs:
            pairs = self._aggregated(pairs)
        self._reduced = False

        def apply() -> Any:
            return super(Reducing, self).apply_gradients(pairs, name=name, **as_they_are)

        return apply() if self._agg_helper is None else self._agg_helper.apply_or_count(apply, self)


class ReducingCurrent(Reducing):
    """Mixin for optimizers of tf_keras 2.11 and later."""

    def compute_gradients(self: Any, loss: Any, var_list: Any, tape: Any = None) -> Pairs:
        """Collective: the reduced gradients, with their variables."""
        pairs: Pairs = self._computed(super().compute_gradients(loss, var_list, tape))
        return pairs

    def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> Pairs:
        pairs: Pairs = self.compute_gradients(loss, var_list, tape)
        return pairs

    def aggregate_gradients(self, grads_and_vars: Any) -> Pairs:
        """Collective: the gradients, reduced if they are not yet, with their variables."""
        return self._aggregated(grads_and_vars)

    def apply_gradients(
        self,
        grads_and_vars: Any,
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """Collective, unless told to skip: reduce the gradients if they are not yet, and apply them."""
        aggregate = experimental_aggregate_gradients and not skip_gradients_aggregation
        return self._apply(grads_and_vars, name, aggregate, skip_gradients_aggregation=True)

    def build(self: Any, var_list: Any) -> None:
        """Create the optimizer's variables, and give them the values that it was copied with."""
        super().build(var_list)
        weights, self.weights_to_set = self.weights_to_set, None
        if weights is not None and len(weights) == len(self.variables):
            self.set_weights(weights)


class ReducingLegacy(Reducing):
    """Mixin for tf_keras.optimizers.legacy."""

    def _compute_gradients(self: Any, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> Pairs:
        pairs: Pairs = self._computed(super()._compute_gradients(loss, var_list, grad_loss, tape))
        return pairs

    def _aggregate_gradients(self, grads_and_vars: Any) -> list[Any]:
        return [gradient for gradient, _ in self._aggregated(grads_and_vars)]

    def apply_gradients(
        self, grads_and_vars: Any, name: str | None = None, experimental_aggregate_gradients: bool = True
    ) -> Any:
        """Collective, unless told to skip: reduce the gradients if they are not yet, and apply them."""
        return self._apply(
            grads_and_vars, name, experimental_aggregate_gradients, experimental_aggregate_gradients=False
        )


def distribute(optimizer: Any, options: OptimizerOptions) -> Any:
    """A distributed copy of an optimizer, with its state."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        config = optimizer.get_config()
        settings = {name: config[name] for name in ("dynamic", "initial_scale", "dynamic_growth_steps")}
        made = type(optimizer)(distribute(inner, options), **settings)
        made.register_local_var = made.inner_optimizer.register_local_var
        return made
    made = _subclass(type(optimizer), options).from_config(optimizer.get_config())
    copy_exclusions(optimizer, made)
    if isinstance(optimizer, tf_keras.optimizers.Optimizer) and getattr(optimizer, "_built", False):
        made.weights_to_set = [variable.numpy() for variable in optimizer.variables]
    return made


def convert(optimizer: Any, options: OptimizerOptions) -> None:
    """Make a loaded optimizer itself distributed, unless it is."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if not isinstance(optimizer, Reducing):
        optimizer.__class__ = _subclass(type(optimizer), options)
        optimizer.begin()


def _subclass(kind: type, options: OptimizerOptions) -> Any:
    mixed_in = ReducingCurrent if issubclass(kind, tf_keras.optimizers.Optimizer) else ReducingLegacy
    return subclass(kind, mixed_in, options)
