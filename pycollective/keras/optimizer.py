"""DistributedOptimizer: any optimizer of Keras 3 or tf_keras, on gradients that are reduced over all ranks.

And loading saved models so that their optimizers are distributed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import keras

from pycollective import checks
from pycollective.hvd.arguments import Average, OptimizerOptions, groups_of, weights_of
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.keras import keras3
from pycollective.keras.compression import Compression


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer of the same class that applies gradients reduced over all ranks; the given one is unchanged.

    All gradients of a step are reduced together before they are clipped and applied. The engine fuses them; with the
    default topology the weights are bitwise identical however it does. All ranks must compute gradients of the same
    variables. Saved models have the original class: load_model of this package makes it distributed again.

    Args:
        optimizer: of Keras 3 (any backend) or tf_keras; its state is copied. For mixed precision it may be a
            LossScaleOptimizer, or `compile` may create one.
        name, device_dense, device_sparse: accepted for Horovod's scripts, and ignored.
        compression: how gradients are compressed for communication, see Compression.
        sparse_as_dense: reduce tf.IndexedSlices as dense tensors; otherwise the ranks' slices are concatenated.
        gradient_predivide_factor: the part of the division by the number of ranks that is done before the sum.
        op: Average, Sum, Min, Max or Product of the gradients, or Adasum.
        num_groups: old name of `groups`.
        groups: number of groups of gradients to reduce together, or the groups themselves as lists of variables.
        backward_passes_per_step: steps whose gradients are added up before they are reduced and applied.
        average_aggregated_gradients: divide these sums by backward_passes_per_step.
        process_set: the participating ranks; others apply their own gradients.
        scale_local_gradients: divide gradients that are not reduced (see register_local_var) by the number of ranks.

    Raises:
        TypeError: not an optimizer.
        ValueError: arguments are invalid or incompatible.
    """
    options = OptimizerOptions(
        compression, sparse_as_dense, gradient_predivide_factor, op, groups_of(num_groups, groups),
        backward_passes_per_step, average_aggregated_gradients, process_set, scale_local_gradients,
    )  # fmt: skip
    return home_of(optimizer).distribute(optimizer, options)


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """A DistributedOptimizer that does not reduce the gradients of some layers.

    Args:
        local_layers: a built layer, or several.

    The other arguments are those of DistributedOptimizer.
    """
    local = weights_of(local_layers)
    made = DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op, 0,
        groups, backward_passes_per_step, average_aggregated_gradients, process_set, scale_local_gradients,
    )  # fmt: skip
    for variable in local:
        made.register_local_var(variable)
    return made


def home_of(optimizer: Any) -> ModuleType:
    """The module that distributes optimizers of this kind."""
    if isinstance(optimizer, keras.optimizers.Optimizer):
        return keras3
    if "tf_keras" in sys.modules:
        from pycollective.keras import keras2

        if isinstance(optimizer, keras2.OPTIMIZERS):
            return keras2
    return checks.refuse_type("optimizer", "an optimizer of Keras 3 or tf_keras", optimizer)


class Loader:
    """Loads models with one package of Keras: Keras 3 or tf_keras."""

    def __init__(self, keras: Any) -> None:
        self._keras = keras

    def load_model(
        self,
        filepath: Any,
        custom_optimizers: Sequence[type] | None = None,
        custom_objects: Mapping[str, Any] | None = None,
        compression: Any = Compression.none,
        legacy_opts: bool = False,
        *,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
    ) -> Any:
        """Load a saved model, whose optimizer, with its state, becomes a DistributedOptimizer.

        Args:
            filepath: of a model saved by `model.save`, distributed or not.
            custom_optimizers: classes of optimizers that Keras does not have.
            custom_objects: name -> class or function, for `keras.models.load_model`.
            compression, backward_passes_per_step, average_aggregated_gradients: as they were given to
                DistributedOptimizer, whose other arguments have their defaults.
            legacy_opts: accepted for Horovod's scripts, and ignored: the file has the optimizer's class.

        Raises:
            ValueError: the optimizer in the file adds up the gradients of another number of steps: the file does not
                tell whether their sum or their average was used.
        """
        known = {kind.__name__: kind for kind in custom_optimizers or ()}
        options = OptimizerOptions(
            compression=compression,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
        )
        model = self._keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
        if getattr(model, "optimizer", None) is not None:
            home_of(model.optimizer).convert(model.optimizer, options)
        return model
