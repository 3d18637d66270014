"""DistributedOptimizer: optimizers of tf.compat.v1.train here, Keras's in pycollective.keras."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from pycollective import checks
from pycollective.hvd.arguments import Adasum, Average, OptimizerOptions, groups_of
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.tensorflow.compression import Compression
from pycollective.tensorflow.gradient_aggregation import LocalGradientAggregation
from pycollective.tensorflow.hvd.gradients import GradientReducer, Groups


class _Wrapping(tf.compat.v1.train.Optimizer):
    """An optimizer around another one, whose state it uses."""

    def __init__(self, optimizer: Any, name: str, use_locking: bool) -> None:
        super().__init__(use_locking=use_locking, name=name)
        self._optimizer = optimizer

    def get_slot(self, *arguments: Any, **options: Any) -> Any:
        return self._optimizer.get_slot(*arguments, **options)

    def get_slot_names(self, *arguments: Any, **options: Any) -> Any:
        return self._optimizer.get_slot_names(*arguments, **options)

    def variables(self) -> Any:
        return self._optimizer.variables()


class _DistributedOptimizer(_Wrapping):
    """Reduces the gradients that another optimizer computes."""

    def __init__(self, optimizer: Any, name: str, use_locking: bool, options: OptimizerOptions) -> None:
        super().__init__(optimizer, name, use_locking)
        self._reducer = GradientReducer(name, options)
        self._aggregation = None
        if options.backward_passes_per_step > 1:
            self._aggregation = LocalGradientAggregation(options, self._reducer, name)

    def register_local_var(self, var: Any) -> None:
        """Do not reduce the gradient of this variable: it belongs to this rank only."""
        self._reducer.local[id(var)] = var

    def compute_gradients(self, *arguments: Any, **options: Any) -> list[tuple[Any, Any]]:
        """Collective: (gradient, variable), reduced over all ranks."""
        pairs = self._optimizer.compute_gradients(*arguments, **options)
        gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
        compute = self._reducer if self._aggregation is None else self._aggregation.compute
        return list(zip(compute(gradients, variables), variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """The other optimizer's step; with backward_passes_per_step in every such pass only."""
        pairs = list(grads_and_vars)

        def step() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        if self._aggregation is None:
            return step()
        return self._aggregation.apply(step, [gradient for gradient, _ in pairs], global_step)


class _DistributedAdasumOptimizer(_Wrapping):
    """Lets another optimizer step on this rank's gradients, then combines the ranks' steps by Adasum.

    Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2021, https://arxiv.org/abs/2006.02924.
    """

    def __init__(self, optimizer: Any, name: str, use_locking: bool, compression: Any, passes: int) -> None:
        super().__init__(optimizer, name, use_locking)
        self._passes = passes
        self._reducer = GradientReducer(name, OptimizerOptions(compression, op=Adasum))

    def compute_gradients(self, *arguments: Any, **options: Any) -> Any:
        """The other optimizer's."""
        return self._optimizer.compute_gradients(*arguments, **options)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Collective: step, and combine with the other ranks' steps since the last time."""
        pairs = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
        variables = [variable for _, variable in pairs]
        if self._passes == 1:
            starts = [tf.identity(variable.read_value()) for variable in variables]
        else:
            starts, kept, count = self._begin(variables)
        with tf.control_dependencies(starts):
            stepped = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        with tf.control_dependencies([stepped] if stepped is not None else []):
            if self._passes == 1:
                return tf.group(*self._combined(variables, starts))
            passed = count.assign_add(1, read_value=True)
            last = tf.equal(passed % self._passes, 0)

            def combine() -> tf.Tensor:
                with tf.control_dependencies(self._combined(variables, [start.read_value() for start in kept])):
                    return tf.constant(True)

            return tf.cond(last, combine, lambda: tf.constant(False)).op

    def _begin(self, variables: list[Any]) -> tuple[list[Any], list[Any], Any]:
        """The values at the last combination, the variables that keep them, and the number of passes."""
        with tf.compat.v1.variable_scope(f"{self.get_name()}_start", reuse=tf.compat.v1.AUTO_REUSE):
            options: dict[str, Any] = {"trainable": False, "use_resource": True}
            zero = tf.compat.v1.zeros_initializer()
            kept = [
                tf.compat.v1.get_variable(f"{i}", v.shape, v.dtype.base_dtype, zero, **options)
                for i, v in enumerate(variables)
            ]
            count = tf.compat.v1.get_variable("passes", (), tf.int64, zero, **options)
        first = tf.equal(count.read_value() % self._passes, 0)
        starts = []
        for start, variable in zip(kept, variables, strict=True):
            value = tf.where(first, variable.read_value(), start.read_value())
            starts.append(start.assign(value, read_value=True))
        return starts, kept, count

    def _combined(self, variables: list[Any], starts: list[Any]) -> list[Any]:
        """The variables' new values, once they are assigned."""
        deltas = [variable.read_value() - start for variable, start in zip(variables, starts, strict=True)]
        values = [start + delta for start, delta in zip(starts, self._reducer(deltas, variables), strict=True)]
        updates = [variable.assign(value) for variable, value in zip(variables, values, strict=True)]
        with tf.control_dependencies([] if tf.executing_eagerly() else updates):
            return [tf.identity(value) for value in values]


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer that steps on gradients reduced over all ranks, all of a step in one operation.

    Args:
        optimizer: of tf.compat.v1.train; or Keras's, see pycollective.keras.DistributedOptimizer.
        name: of the operations.
        use_locking: see tf.compat.v1.train.Optimizer.
        backward_passes_per_step: passes to sum on the rank before gradients are reduced.
        op: Average, Sum, Min, Max or Product of the gradients; Adasum of the ranks' steps.
        average_aggregated_gradients: divide the sum over the passes by their number.

    The others are those of DistributedGradientTape.

    Raises:
        ValueError, TypeError: invalid or incompatible arguments.
        NotImplementedError: Adasum with a process set.
    """
    options = OptimizerOptions(
        compression, sparse_as_dense, gradient_predivide_factor, checks.integer(op, "op"),
        groups_of(num_groups, groups), backward_passes_per_step, average_aggregated_gradients, process_set,
        scale_local_gradients,
    )  # fmt: skip
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("Adasum takes no average_aggregated_gradients")
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if backward_passes_per_step > 1 and tf.executing_eagerly():
            raise ValueError("backward_passes_per_step > 1 needs a graph with optimizers of tf.compat.v1.train")
        if op == Adasum:
            if process_set.process_set_id != 0:
                raise NotImplementedError("Adasum of steps takes no process set")
            name = name or f"DistributedDelta{type(optimizer).__name__}"
            passes = int(backward_passes_per_step)
            return _DistributedAdasumOptimizer(optimizer, name, use_locking, compression, passes)
        return _DistributedOptimizer(optimizer, name or f"Distributed{type(optimizer).__name__}", use_locking, options)
    if op == Adasum:
        raise ValueError("op=Adasum is supported with optimizers of tf.compat.v1.train only")
    from pycollective.keras.optimizer import home_of

    return home_of(optimizer).distribute(optimizer, options)


def DistributedAdasumOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
) -> Any:
    """DistributedOptimizer with op=Adasum."""
    return DistributedOptimizer(
        optimizer, name, use_locking, device_dense, device_sparse, compression,
        backward_passes_per_step=backward_passes_per_step, op=Adasum,
    )  # fmt: skip
