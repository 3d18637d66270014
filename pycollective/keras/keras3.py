"""The DistributedOptimizer of Keras 3: a subclass of the optimizer's class whose `apply` reduces first."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import keras
from keras.src import api_export
from keras.src.saving import object_registration

from pycollective.hvd.arguments import OptimizerOptions
from pycollective.keras import backends
from pycollective.keras.reduction import GradientReduction, ReducingOptimizer, copy_exclusions, subclass


class Reducing(ReducingOptimizer):
    """Reduces in `apply`, in which all ways of applying gradients end.

    `apply_gradients` and `stateless_apply` call it, and so do the trainers of all backends. An optimizer that
    accumulates gradients (gradient_accumulation_steps) reduces the sums, where it would clip them.
    """

    called_by = "apply"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reduction = GradientReduction(type(self).options, backends.current())

    def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        """Collective: reduce the gradients, then apply them."""
        grads = list(grads)
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if not grads or len(grads) != len(variables):  # the optimizer has its own error for this
            return super().apply(grads, trainable_variables)
        with self.reduction.step(grads, variables, bool(self.gradient_accumulation_steps)) as reduced:
            return super().apply(reduced, trainable_variables)

    # -- what scripts for Horovod's Keras 2 optimizers call, on the TensorFlow backend ------------------------------

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Any, Any]]:
        """Collective: the reduced gradients, with their variables; the next `apply` does not reduce them again.

        With backward_passes_per_step > 1 these are this rank's own: `apply` adds them up, and reduces the sums.

        Args:
            loss: a function without arguments, or a tensor that `tape` has recorded.
            var_list: variables, or a function that returns them.

        Raises:
            ValueError: a tensor without its tape.
            RuntimeError: the backend of Keras is not TensorFlow.
        """
        return self._compute_gradients(loss, var_list, None, tape)

    def _compute_gradients(
        self: Any, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        if keras.backend.backend() != "tensorflow":
            raise RuntimeError("compute_gradients needs the TensorFlow backend of Keras: use apply_gradients")
        variables = list(var_list() if callable(var_list) else var_list)
        gradients = self.reduction.backend.gradients(loss, variables, grad_loss, tape)
        if not self.gradient_accumulation_steps:
            gradients = self.reduction.for_next_step(gradients, variables)
        return list(zip(gradients, variables, strict=True))

    @property
    def _agg_helper(self: Any) -> Any:
        """`counter`: the number of passes since the last update; None: gradients are not accumulated."""
        passes = self.gradient_accumulation_steps
        return types.SimpleNamespace(counter=keras.ops.mod(self._iterations, passes)) if passes else None

    # -- accumulation ------------------------------------------------------------------------------------------------

    def _clip_gradients(self: Any, grads: Sequence[Any]) -> Any:
        steps = self.gradient_accumulation_steps
        if steps:
            only_if = None
            if keras.backend.backend() == "jax":  # it clips in every step; others in those that update
                only_if = keras.ops.equal(keras.ops.mod(self._iterations + 1, steps), 0)
            grads = self.reduction.accumulated(grads, only_if)
            if self.options.backward_passes_per_step > 1 and not self.options.average_aggregated_gradients:
                multiply = self.reduction.backend.multiply  # Keras has divided
                grads = [multiply(gradient, steps) for gradient in grads]
        return super()._clip_gradients(grads)

    def update_step(self, *args: Any, **kwargs: Any) -> Any:
        """Called by `apply`.

        Raises:
            RuntimeError: called by anything else.
        """
        self._require_reduction()
        return super().update_step(*args, **kwargs)

    def _backend_update_step(self, *args: Any, **kwargs: Any) -> Any:
        self._require_reduction()
        return super()._backend_update_step(*args, **kwargs)

    def _require_reduction(self) -> None:
        if not self.reduction.applying:
            raise RuntimeError(
                "a DistributedOptimizer reduces gradients in apply() and apply_gradients(): without these, the ranks "
                "would diverge"
            )


def distribute(optimizer: Any, options: OptimizerOptions) -> Any:
    """A distributed copy of an optimizer, with its state.

    Raises:
        ValueError: an argument does not suit the optimizer.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        made = type(optimizer).from_config(optimizer.get_config())
        made.inner_optimizer = _copied(optimizer.inner_optimizer, options, type(made.inner_optimizer))
        made.register_local_var = made.inner_optimizer.register_local_var
    else:
        made = _copied(optimizer, options, type(optimizer))
    _reduce_before_finiteness_is_tested()
    if optimizer.built:
        if not made.built:
            made.build(optimizer._trainable_variables)  # noqa: SLF001
        if len(made.variables) == len(optimizer.variables):
            for mine, theirs in zip(made.variables, optimizer.variables, strict=True):
                mine.assign(theirs)
    return made


def convert(optimizer: Any, options: OptimizerOptions) -> None:
    """Make a loaded optimizer itself distributed, unless it is.

    Raises:
        ValueError: its gradient_accumulation_steps are not the options' backward_passes_per_step.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if not isinstance(optimizer, Reducing):
        steps, passes = optimizer.gradient_accumulation_steps or 1, options.backward_passes_per_step
        if steps != passes:
            raise ValueError(
                f"the optimizer in the file adds up the gradients of {steps} steps: load it with "
                f"backward_passes_per_step={steps}, not {passes}, and average_aggregated_gradients as in the training "
                "(True for the optimizer's own gradient_accumulation_steps)"
            )
        optimizer.__class__ = _subclass(type(optimizer), options)
        optimizer.reduction = GradientReduction(options, backends.current())
        _require_known_structure(optimizer)
    _reduce_before_finiteness_is_tested()


def _copied(optimizer: Any, options: OptimizerOptions, kind: type) -> Any:
    config = optimizer.get_config()
    passes = options.backward_passes_per_step
    if passes > 1:
        if config.get("gradient_accumulation_steps") not in (None, passes):
            raise ValueError(
                "backward_passes_per_step and the optimizer's gradient_accumulation_steps exclude each other"
            )
        config["gradient_accumulation_steps"] = passes
    made = _subclass(kind, options).from_config(config)
    _require_known_structure(made)
    copy_exclusions(optimizer, made)
    return made


def _subclass(kind: type, options: OptimizerOptions) -> Any:
    made = subclass(kind, Reducing, options)
    base = made.wrapped_class
    names = (api_export.get_name_from_symbol(c) for c in base.__mro__ if c.__name__ == base.__name__)
    public_name = next(filter(None, names), None)
    if base.__module__.startswith("keras.") and public_name is not None:
        api_export.REGISTERED_OBJS_TO_NAMES[made] = public_name
    else:
        object_registration.GLOBAL_CUSTOM_NAMES[made] = object_registration.get_registered_name(base)
    return made


def _require_known_structure(optimizer: Any) -> None:
    """
    Raises:
        ValueError: the optimizer accumulates gradients in its own way, which would not be reduced.
    """
    if not optimizer.gradient_accumulation_steps:
        return
    for name in ("_backend_apply_gradients", "_clip_gradients"):
        owner = next(c for c in optimizer.wrapped_class.__mro__ if name in vars(c))
        if not owner.__module__.startswith("keras."):
            raise ValueError(
                f"{optimizer.wrapped_class.__name__} overrides {name}: it cannot accumulate gradients that are reduced"
            )


# -- mixed precision -----------------------------------------------------------------------------------------------


def _reduce_before_finiteness_is_tested() -> None:
    """Make a LossScaleOptimizer reduce before it tests whether gradients are finite, if its inner optimizer reduces.

    It skips steps with infinite gradients. Before the reduction only some ranks may have them; afterwards all have, and
    skip the step together. `compile` creates these optimizers itself, so their class is changed.
    """
    kind = keras.optimizers.LossScaleOptimizer
    if hasattr(kind.apply, "reduces"):
        return
    apply, stateless_apply = kind.apply, kind.stateless_apply

    def reducing_apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        inner = self.inner_optimizer
        if not isinstance(inner, Reducing):
            return apply(self, grads, trainable_variables)
        with inner.reduction.before(list(grads), variables) as reduced:
            return apply(self, reduced, trainable_variables)

    def reducing_stateless_apply(self: Any, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        inner = self.inner_optimizer
        if not isinstance(inner, Reducing):
            return stateless_apply(self, optimizer_variables, grads, trainable_variables)
        with inner.reduction.before(list(grads), self._trainable_variables) as reduced:
            return stateless_apply(self, optimizer_variables, reduced, trainable_variables)

    reducing_apply.reduces = True  # type: ignore[attr-defined]
    kind.apply, kind.stateless_apply = reducing_apply, reducing_stateless_apply
