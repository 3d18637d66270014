"""The arguments of a DistributedOptimizer, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pycollective import checks
from pycollective.hvd.arguments import Adasum, Average, compressor, operator_name, split_evenly
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.keras.compression import Compression


@dataclass(frozen=True)
class OptimizerOptions:
    """See DistributedOptimizer."""

    compression: Any = Compression.none
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    op: int = Average
    groups: int | Sequence[Sequence[Any]] | None = None
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError, TypeError: an argument is invalid, or two are incompatible.
        """
        compressor(self.compression)
        checks.flag(self.sparse_as_dense, "sparse_as_dense")
        checks.flag(self.average_aggregated_gradients, "average_aggregated_gradients")
        checks.flag(self.scale_local_gradients, "scale_local_gradients")
        checks.instance(self.process_set, "process_set", ProcessSet, "a ProcessSet")
        if checks.integer(self.backward_passes_per_step, "backward_passes_per_step") <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        if self.op != Adasum:
            operator_name(self.op)
        predivide = checks.number(self.gradient_predivide_factor, "gradient_predivide_factor")
        if predivide != 1.0 and self.op != Average:
            raise ValueError("gradient_predivide_factor is supported with op=Average only")
        if self.groups is not None and not isinstance(self.groups, (list, tuple)):
            checks.integer(self.groups, "groups", least=0)

    def group_names(self, names: Sequence[str], variables: Sequence[Any]) -> list[list[str]]:
        """The names of each group's variables.

        Raises:
            ValueError: a variable is in two groups.
        """
        if not self.groups:
            return []
        if isinstance(self.groups, (list, tuple)):
            name_of = {key_of(variable): name for name, variable in zip(names, variables, strict=True)}
            members = [[key_of(variable) for variable in group] for group in self.groups]
            if len(set().union(*members)) < sum(map(len, members)):
                raise ValueError("a variable can be in one group only")
            return [[name_of[key] for key in group if key in name_of] for group in members]
        return [list(part) for part in split_evenly(names, checks.integer(self.groups, "groups"))]


def key_of(variable: Any) -> Any:
    """Return one key for a Keras variable and for the TensorFlow variable that holds its value."""
    value = getattr(variable, "_value", variable)
    return getattr(value, "_unique_id", id(variable))
