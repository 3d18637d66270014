"""Schedules of the learning rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pycollective.hvd import basics
from pycollective.keras.binding import Callback, Logs


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
