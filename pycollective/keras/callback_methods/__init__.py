"""The callbacks, one source for all packages of Keras: `binding` gives them the base classes of one of these."""

from __future__ import annotations

from pycollective.keras.callback_methods.broadcast import BroadcastGlobalVariablesCallback
from pycollective.keras.callback_methods.learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback
from pycollective.keras.callback_methods.metrics import BestModelCheckpoint, MetricAverageCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
