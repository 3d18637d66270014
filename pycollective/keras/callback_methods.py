"""The callbacks, one source for all packages of Keras: `binding` gives them the base classes of one of these."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from pycollective.errors import MismatchError
from pycollective.hvd import basics, handles, operations
from pycollective.hvd.arguments import Average
from pycollective.hvd.gradients.agreement import DENSE, GradientAgreement
from pycollective.hvd.objects import allgather_object
from pycollective.hvd.process_sets import global_process_set
from pycollective.keras.binding import Callback, Logs, ModelCheckpoint
from pycollective.keras.functions import broadcast_variables, is_built, variables_of
from pycollective.keras.reduction import key_of

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


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


class LearningRateScheduleCallback(Callback):
    """Sets the learning rate to initial_lr * multiplier(epoch) in a range of epochs."""

    model: Any
    params: dict[str, Any]

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        """
        Args:
            initial_lr: the learning rate that is multiplied.
            multiplier: a function of the epoch; or a number, the factor from one epoch to the next.
            start_epoch, end_epoch: the range, without its end; None: no end.
            staircase: set it at the beginning of an epoch, to a whole number of epochs; otherwise before each batch.
            momentum_correction: scale the optimizer's velocities, which include the learning rate, when it changes
                (Goyal et al., https://arxiv.org/abs/1706.02677, section 3.2).
            steps_per_epoch: batches in an epoch; by default as Keras knows them.

        Raises:
            ValueError: no initial_lr.
        """
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr must be the learning rate at the start of the training, not None")
        self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
        self.staircase, self.momentum_correction = staircase, momentum_correction
        self.steps_per_epoch, self.current_epoch = steps_per_epoch, 0
        self.multiplier: Callable[[float], float]
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            base = float(multiplier)
            self.multiplier = lambda epoch: base ** (epoch - start_epoch)

    def on_train_begin(self, logs: Logs = None) -> None:
        """
        Raises:
            ValueError: the number of steps in an epoch is needed, and unknown.
        """
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(f"{type(self).__name__} needs steps_per_epoch: Keras does not know the number")

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        if self.current_epoch < self.start_epoch or (
            self.end_epoch is not None and self.current_epoch >= self.end_epoch
        ):
            return
        if not self.staircase:
            self._set_rate(self.current_epoch + batch / float(self.steps_per_epoch or 1))
        elif batch == 0:
            self._set_rate(self.current_epoch)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Add the learning rate to the logs, as "lr"."""
        if logs is not None:
            logs["lr"] = _rate(self.model.optimizer)

    def _set_rate(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old, new = _rate(optimizer), self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        if self.momentum_correction and old > 0 and new != old:
            for velocity in _velocities(optimizer):
                velocity.assign(velocity * (new / old))


def _rate(optimizer: Any) -> float:
    rate = optimizer.learning_rate
    return float(rate.numpy() if hasattr(rate, "numpy") else rate)


def _velocities(optimizer: Any) -> list[Any]:
    """The state that an optimizer with momentum multiplies by it; none without momentum."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if not getattr(optimizer, "momentum", 0):
        return []
    if hasattr(optimizer, "get_slot"):  # tf_keras.optimizers.legacy
        return [v for v in optimizer.weights if "/momentum" in v.name]
    found = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or []
    return [velocity for velocity in found if velocity is not None]


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from initial_lr / size() to initial_lr, linearly over the first epochs.

    At `epoch`, a fraction, it is initial_lr / size * (epoch * (size - 1) / warmup_epochs + 1): Goyal et al.,
    https://arxiv.org/abs/1706.02677, section 2.2.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        """
        Args:
            initial_lr: the learning rate after the warmup.
            warmup_epochs: how long it takes.
            momentum_correction, steps_per_epoch: see LearningRateScheduleCallback.
            verbose: 1: rank 0 prints when it has ended.
        """

        def multiplier(epoch: float) -> float:
            epoch += 1 / float(self.steps_per_epoch or 1)  # so that an epoch ends at a round number
            return (epoch * (basics.size() - 1) / warmup_epochs + 1) / basics.size()

        super().__init__(
            initial_lr, multiplier, 0, warmup_epochs, staircase=False,
            momentum_correction=momentum_correction, steps_per_epoch=steps_per_epoch,
        )  # fmt: skip
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0 and basics.rank() == 0:
            print(f"\nEpoch {epoch + 1}: the learning rate has reached {_rate(self.model.optimizer):g}.")


class MetricAverageCallback(Callback):
    """Averages the metrics of an epoch over all ranks, for the callbacks behind it in the list."""

    def __init__(self, device: str = "") -> None:
        """Args: device: accepted for Horovod's scripts, and ignored."""
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Collective: replace the numbers among `logs` by their averages.

        Raises:
            MismatchError: the ranks have different metrics; the message names them.
        """
        names = sorted(name for name, value in (logs or {}).items() if np.isscalar(value) or np.ndim(value) == 0)
        prefix = handles.unnamed("metrics", global_process_set)
        with handles.internal_errors():
            GradientAgreement(prefix, dict.fromkeys(names, ((), "float64")), global_process_set).reach(
                [DENSE] * len(names)
            )
        if not logs or not names:
            return
        values = np.array([float(logs[name]) for name in names])
        item = operations.reduction(values, values, f"{prefix}.average", Average, 1.0, 1.0)
        handles.run([item], global_process_set)
        logs.update(zip(names, values.tolist(), strict=True))


class BestModelCheckpoint(ModelCheckpoint):
    """A ModelCheckpoint that keeps the best model only, written by rank 0."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: str = "best_model.keras",
    ) -> None:
        """Args: filepath: also an attribute that may be set before training. The others: see ModelCheckpoint."""
        super().__init__(
            filepath, monitor=monitor, verbose=verbose, save_best_only=True, save_weights_only=False, mode=mode,
            save_freq=save_freq,
        )  # fmt: skip

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        if basics.rank() == 0:
            super()._save_model(*args, **kwargs)
