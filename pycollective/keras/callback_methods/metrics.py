"""Metrics over all ranks, and the checkpoint of the best model."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycollective.hvd import basics, handles, operations
from pycollective.hvd.arguments import Average
from pycollective.hvd.gradients.agreement import DENSE, GradientAgreement
from pycollective.hvd.process_sets import global_process_set
from pycollective.keras.binding import Callback, Logs, ModelCheckpoint


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
