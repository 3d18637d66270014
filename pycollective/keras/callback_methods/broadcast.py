"""The broadcast of the initial weights, and checks that the ranks can train together."""

from __future__ import annotations

import warnings
from typing import Any

from pycollective.errors import MismatchError
from pycollective.hvd import basics
from pycollective.hvd.objects import allgather_object
from pycollective.keras.binding import Callback, Logs
from pycollective.keras.functions import broadcast_variables, is_built, variables_of
from pycollective.keras.options import key_of


class BroadcastGlobalVariablesCallback(Callback):
    """Starts all ranks from the root's weights and optimizer state."""

    model: Any
    params: dict[str, Any]

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        """
        Args:
            root_rank: the rank whose values are broadcast.
            device: accepted for Horovod's scripts, and ignored.
            local_variables: a variable that keeps each rank's values, or several.
        """
        super().__init__()
        self.root_rank, self.device = root_rank, device
        self.broadcast_done = False
        self._local_vars: set[Any] = set()
        several = [local_variables] if hasattr(local_variables, "assign") else list(local_variables or ())
        for variable in several:
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Do not broadcast this variable.

        Raises:
            ValueError: not a variable.
        """
        if not hasattr(var, "assign"):
            raise ValueError(f"local_variables must be variables, not {type(var).__name__}")
        self._local_vars.add(key_of(var))

    def on_train_begin(self, logs: Logs = None) -> None:
        """Collective: broadcast what exists on all ranks.

        Raises:
            MismatchError: the ranks are about to train for different numbers of steps or epochs.
        """
        optimizer = self.model.optimizer
        mine = {
            "steps": self.params.get("steps"),
            "epochs": self.params.get("epochs"),
            "model": bool(self.model.built),
            "optimizer": is_built(optimizer),
        }
        everyone = allgather_object(mine)
        for unit in ("steps", "epochs"):
            counts = [one[unit] for one in everyone]
            if len(set(counts)) > 1:
                raise MismatchError(f"the ranks' numbers of {unit} differ: {counts}, in the order of the ranks")
        if self.broadcast_done:
            return
        if all(one["model"] for one in everyone):
            self._broadcast(self.model.weights)
            if all(one["optimizer"] for one in everyone):
                self._broadcast(variables_of(optimizer))
                self.broadcast_done = True

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Collective after the first batch, which has created all variables: broadcast them, if that was not done."""
        _check_reduces(self.model)
        self.on_train_batch_end = _nothing  # type: ignore[method-assign]
        if not self.broadcast_done:
            self._broadcast([*self.model.weights, *variables_of(self.model.optimizer)])
            self.broadcast_done = True

    def _broadcast(self, variables: Any) -> None:
        broadcast_variables([v for v in variables if key_of(v) not in self._local_vars], self.root_rank)


def _nothing(batch: int, logs: Logs = None) -> None:
    pass


def _check_reduces(model: Any) -> None:
    """After a step.

    Raises:
        RuntimeError: the step did not use the model's DistributedOptimizer.
    """
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    reduction = getattr(optimizer, "reduction", None)
    if not model.trainable_variables or basics.size() == 1 or optimizer is None:
        return
    if reduction is None:
        warnings.warn(
            "the model's optimizer is not a DistributedOptimizer: unless its train_step reduces gradients, the ranks "
            "diverge",
            stacklevel=3,
        )
    elif reduction.count == 0:
        raise RuntimeError(
            "the first training step did not use the model's DistributedOptimizer: no gradient was reduced. A custom "
            "train_step must call optimizer.apply() or apply_gradients()"
        )
