"""Autotuning: the fusion threshold, and the time to wait for more operations to fuse, tuned on the job's own traffic.

Rank 0 tries one value after the other, each for about half a second, and keeps the one that moved the most bytes; first
one of the two parameters, then the other. Horovod's parameter manager uses Bayesian optimization
(https://horovod.readthedocs.io/en/stable/autotune.html). The result can be kept in the file of PYCOLLECTIVE_TUNING, for
the next run.
"""

from __future__ import annotations

import csv
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from pycollective.comm.tuning_file import Fusion, layout, update

if TYPE_CHECKING:
    from pycollective import _core
    from pycollective.comm.communicator import Communicator
    from pycollective.engine.settings import Settings

log = logging.getLogger("pycollective.autotune")

THRESHOLDS = tuple(mebibytes << 20 for mebibytes in (128, 64, 32, 8, 2))
CYCLE_TIMES = (1e-3, 0.1e-3, 0.3e-3, 3e-3, 10e-3)
"""Bytes and seconds, the defaults first."""
SAMPLE_SECONDS, SAMPLE_BATCHES = 0.5, 10


class Tuner:
    """Tries values on a job's traffic, on rank 0, in a thread."""

    def __init__(self, core: _core.Engine, table: str, done: Callable[[int, float], None]) -> None:
        """Start. `table`: the file for all measurements; empty: none. `done`: called with the result."""
        self._core, self._table, self._done = core, table, done
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pycollective autotune", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, if it has not completed."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with _written(self._table or os.devnull) as file:
            table = csv.writer(file)
            table.writerow(("fusion_threshold_bytes", "cycle_time_ms", "score_bytes_per_second"))
            try:
                self._sample()  # to warm up
                threshold, _ = self._best([(value, CYCLE_TIMES[0]) for value in THRESHOLDS], table)
                _, cycle_time = self._best([(threshold, value) for value in CYCLE_TIMES], table)
            except InterruptedError:
                return
        self._core.tune(threshold, cycle_time)
        log.info("found fusion threshold %d bytes, cycle time %g ms", threshold, cycle_time * 1e3)
        self._done(threshold, cycle_time)

    def _best(self, values: Sequence[tuple[int, float]], table: Any) -> tuple[int, float]:
        scores = []
        for threshold, cycle_time in values:
            self._core.tune(threshold, cycle_time)
            scores.append(self._sample())
            table.writerow((threshold, cycle_time * 1e3, round(scores[-1])))
            log.info("threshold %d bytes, cycle time %g ms: %.4g bytes/s", threshold, cycle_time * 1e3, scores[-1])
        return values[int(np.argmax(scores))]

    def _sample(self) -> float:
        """Bytes per second that allreduces moved, over enough traffic."""
        bytes_before, batches_before = self._core.traffic()
        start = time.monotonic()
        while not self._stop.wait(0.02):
            moved, batches = self._core.traffic()
            seconds = time.monotonic() - start
            if seconds >= SAMPLE_SECONDS and batches - batches_before >= SAMPLE_BATCHES:
                return (moved - bytes_before) / seconds
        raise InterruptedError


def _written(path: str) -> TextIO:
    """The file, to write to; if that is impossible, nothing is written, and the job continues."""
    try:
        return open(path, "w", newline="")
    except OSError as error:
        log.warning("the measurements of autotuning are not written: %s", error)
        return open(os.devnull, "w")


def set_up(comm: Communicator, core: _core.Engine, settings: Settings) -> Tuner | None:
    """Set threshold and cycle time, by an earlier run unless the settings differ from the defaults, or start a tuner.

    Does nothing on ranks other than 0, which decides for all.
    """
    group = comm.backend.group
    if comm.rank != 0:
        return None
    threshold, cycle_time = settings.fusion_threshold, settings.cycle_time
    found = group.tuned.fusion if group.tuned is not None else None
    if found is not None and (threshold, cycle_time) == (THRESHOLDS[0], CYCLE_TIMES[0]):
        core.tune(found.threshold, found.cycle_time)
        return None
    core.tune(threshold, cycle_time)
    if not settings.autotune:
        return None

    def keep(threshold: int, cycle_time: float) -> None:
        if settings.tuning:
            try:
                update(settings.tuning, layout(group.nodes.of), fusion=Fusion(threshold, cycle_time))
            except OSError as error:
                log.warning("the result of autotuning is not kept: %s", error)

    return Tuner(core, settings.autotune_log, keep)
