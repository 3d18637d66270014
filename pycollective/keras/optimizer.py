"""DistributedOptimizer: any optimizer of Keras 3 or tf_keras, on gradients that are reduced over all ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import keras

from pycollective import checks
from pycollective.hvd.arguments import Average, groups_of
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.keras import keras3
from pycollective.keras.compression import Compression
from pycollective.keras.options import OptimizerOptions


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
    layers = [local_layers] if hasattr(local_layers, "trainable_weights") else list(local_layers or ())
    if not all(hasattr(layer, "trainable_weights") for layer in layers):
        raise ValueError("local_layers must be layers of Keras")
    made = DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op, 0,
        groups, backward_passes_per_step, average_aggregated_gradients, process_set, scale_local_gradients,
    )  # fmt: skip
    for layer in layers:
        for variable in layer.trainable_weights:
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
