"""Gradient tapes whose gradients are reduced over all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from pycollective import checks
from pycollective.hvd.arguments import Average, OptimizerOptions, groups_of, weights_of
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.tensorflow.compression import Compression
from pycollective.tensorflow.hvd.gradients import GradientReducer, Groups
from pycollective.tensorflow.util import unconverted


class _DistributedTape:
    """Mixed in before the class of the wrapped tape, whose recording it shares."""

    _reducer: GradientReducer

    def register_local_source(self, source: Any) -> None:
        """Do not reduce the gradient of this variable: it belongs to this rank only."""
        self._reducer.local[id(source)] = source

    @unconverted
    def gradient(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False, **options: Any
    ) -> Any:
        """Collective: the gradients as of tf.GradientTape.gradient, reduced over all ranks in one call.

        Args:
            sources: the same on all ranks, but for local ones.
            use_generic_names: without effect.

        Raises:
            FailedPreconditionError: ranks have gradients of different sources.
        """
        found = super().gradient(target, sources, output_gradients, **options)  # type: ignore[misc]
        reduced = self._reducer(tf.nest.flatten(found), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(sources, reduced)

    @unconverted
    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Collective: (source, gradient) of the local sources, and of all others."""
        gradients = tf.nest.flatten(self.gradient(target, sources, output_gradients))
        pairs = list(zip(tf.nest.flatten(sources), gradients, strict=True))
        local = [pair for pair in pairs if id(pair[0]) in self._reducer.local]
        return local, [pair for pair in pairs if id(pair[0]) not in self._reducer.local]


@unconverted
def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A tape with the recording of another one, whose `gradient` is reduced over all ranks.

    All gradients of a call are one operation, in a `tf.function` too; the engine fuses them. With the default topology
    their bits do not depend on how they are fused.

    Args:
        gradtape: a tf.GradientTape that has recorded the computation.
        device_dense, device_sparse: without effect.
        compression: how gradients are compressed for communication, see Compression.
        sparse_as_dense: reduce sparse gradients as dense ones.
        op: Average, Sum, Min, Max, Product or Adasum of the ranks' gradients.
        gradient_predivide_factor: the part of the division by the number of ranks that is done before the sum.
        num_groups: old name of `groups`.
        groups: number of groups of gradients to reduce together, or the groups as lists of variables.
        process_set: the participating ranks; others keep their gradients.
        scale_local_gradients: divide the gradients of local sources by the number of ranks.

    Raises:
        ValueError, TypeError: invalid arguments.
    """
    checks.instance(gradtape, "gradtape", tf.GradientTape, "a tf.GradientTape")
    options = OptimizerOptions(
        compression, sparse_as_dense, gradient_predivide_factor, checks.integer(op, "op"),
        groups_of(num_groups, groups), process_set=process_set, scale_local_gradients=scale_local_gradients,
    )  # fmt: skip
    reducer = GradientReducer("DistributedGradientTape", options)
    base = type(gradtape)
    made_of: Any = type(base.__name__, (_DistributedTape, base), {"__module__": base.__module__})
    made = made_of.__new__(made_of)
    made.__dict__.update(gradtape.__dict__, _reducer=reducer)
    return made


@unconverted
def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """A DistributedGradientTape that does not reduce the gradients of some layers.

    Args:
        local_layers: a Keras layer, or several, whose weights belong to this rank only.

    Raises:
        ValueError: one of `local_layers` has no trainable weights to ask for: it is no layer.
    """
    local = weights_of(local_layers)
    tape = DistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor, num_groups,
        groups, process_set, scale_local_gradients,
    )  # fmt: skip
    for variable in local:
        tape.register_local_source(variable)
    return tape
