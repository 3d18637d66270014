"""Autotuning: the topology for each size, the fusion threshold, and the time to wait for more operations to fuse.

Topologies are timed when the engine is created, before there is other traffic (between hosts there is only one).
Threshold and cycle time are tuned on the job's own traffic: rank 0 tries one value after the other, each for about half
a second, and keeps the one that moved the most bytes; first one of the two parameters, then the other. Horovod's
parameter manager uses Bayesian optimization (https://horovod.readthedocs.io/en/stable/autotune.html). The results can
be stored in a file for the next run.
"""

from __future__ import annotations

import csv
import logging
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import msgspec
import numpy as np

from pycollective.comm.control import Codec
from pycollective.comm.private_file import open_private, write_private

if TYPE_CHECKING:
    from pycollective import _core
    from pycollective.comm.communicator import Communicator
    from pycollective.engine.settings import Settings

log = logging.getLogger("pycollective.autotune")

THRESHOLDS = tuple(mebibytes << 20 for mebibytes in (128, 64, 32, 8, 2))
CYCLE_TIMES = (1e-3, 0.1e-3, 0.3e-3, 3e-3, 10e-3)
"""Bytes and seconds, the defaults first."""
SAMPLE_SECONDS, SAMPLE_BATCHES = 0.5, 10
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
REPEATS = 7


class Found(msgspec.Struct):
    """The results of autotuning."""

    fusion_threshold: Annotated[int, msgspec.Meta(ge=0)]  # bytes
    cycle_time: Annotated[float, msgspec.Meta(ge=0)]  # seconds
    topologies: list[tuple[int, str]]  # (largest size in bytes, topology), ascending; empty: not tuned


_FOUND: Codec[Found | None] = Codec(Found | None)


# -- topologies ----------------------------------------------------------------------------------------------------


def choose_topologies(comm: Communicator, candidates: Sequence[str]) -> list[tuple[int, str]]:
    """Collective: the fastest of several topologies for every size.

    Args:
        comm: of the participating ranks; no other operation may be in progress on it.
        candidates: names of topologies; the first is kept unless another is at least 5 % faster.

    Returns:
        (largest size in bytes, topology), ascending, the same on all ranks; the last row also applies to larger sizes.
    """
    window = comm.empty(max(SIZES) // 4, np.float32)
    window[:] = 0
    rows: list[tuple[int, str]] = []
    for nbytes in SIZES:
        part = window[: nbytes // 4]
        times = [_time(comm, part, name) for name in candidates]
        slowest = comm.allreduce(np.array(times), op="max")  # a topology is as fast as its slowest rank
        best = int(np.argmin(slowest * np.where(np.arange(len(times)) == 0, 0.95, 1.0)))
        rows.append((nbytes * 4, candidates[best]))
    rows[-1] = (1 << 62, rows[-1][1])
    return rows


def _time(comm: Communicator, part: Any, topology: str) -> float:
    """Median seconds of an allreduce."""
    times = []
    for _ in range(REPEATS):
        comm.barrier()
        start = time.perf_counter()
        comm.allreduce(part, out=part, topology=topology)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


# -- threshold and cycle time --------------------------------------------------------------------------------------


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
    """Collective: set threshold, cycle time and topologies from the settings or an earlier run, or start a tuner."""
    hosts = comm.backend.group.nodes.count
    found: Found | None = None
    topologies: list[tuple[int, str]] = []
    if settings.autotune and settings.autotune_file:
        kept = load(settings.autotune_file, comm.size, hosts) if comm.rank == 0 else None
        found = _FOUND.decode(comm.backend.exchange(_FOUND.encode(kept))[0], 0)
    if found is not None:
        topologies = found.topologies
    elif settings.autotune and hosts == 1:
        topologies = choose_topologies(comm, settings.autotune_topologies.split(","))
    if topologies:
        core.set_topologies(topologies)
    if comm.rank != 0:
        return None
    if found is not None:
        core.tune(found.fusion_threshold, found.cycle_time)
        return None
    core.tune(settings.fusion_threshold, settings.cycle_time)
    if not settings.autotune:
        return None

    def keep(threshold: int, cycle_time: float) -> None:
        if settings.autotune_file:
            try:
                save(settings.autotune_file, comm.size, Found(threshold, cycle_time, topologies), hosts)
            except OSError as error:
                log.warning("the result of autotuning is not kept: %s", error)

    return Tuner(core, settings.autotune_log, keep)


# -- stored results ------------------------------------------------------------------------------------------------


def load(path: str, size: int, hosts: int = 1) -> Found | None:
    """The results of an earlier run with the same number of ranks; None if there are none."""
    return _kept(Path(path)).get(_key(size, hosts))


def save(path: str, size: int, found: Found, hosts: int = 1) -> None:
    """Store results, along with those for other numbers of ranks."""
    kept = _kept(Path(path)) | {_key(size, hosts): found}
    text = msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n"
    write_private(Path(path), lambda file: file.write(text))


def _key(size: int, hosts: int) -> str:
    return str(size) if hosts == 1 else f"{size} on {hosts} hosts"


def _kept(path: Path) -> dict[str, Found]:
    """The content of a file; empty if it is unreadable, invalid, or may have been written by another user."""
    try:
        file = open_private(path)
        if file is None:
            return {}
        with file:
            return msgspec.json.decode(file.read(), type=dict[str, Found])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("%s is ignored: %s", path, error)
        return {}
