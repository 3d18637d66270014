"""Callbacks of Keras 3: see `callback_methods`."""

from __future__ import annotations

from typing import Any

import keras

from pycollective.hvd import basics
from pycollective.keras import callback_methods as methods


class BroadcastGlobalVariablesCallback(methods.BroadcastGlobalVariables, keras.callbacks.Callback):
    __doc__ = methods.BroadcastGlobalVariables.__doc__


class MetricAverageCallback(methods.MetricAverage, keras.callbacks.Callback):
    __doc__ = methods.MetricAverage.__doc__


class LearningRateScheduleCallback(methods.LearningRateSchedule, keras.callbacks.Callback):
    __doc__ = methods.LearningRateSchedule.__doc__


class LearningRateWarmupCallback(methods.LearningRateWarmup, keras.callbacks.Callback):
    __doc__ = methods.LearningRateWarmup.__doc__


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
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
