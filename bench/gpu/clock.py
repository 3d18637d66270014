"""Timing on a stream: graphs of many calls, replayed between two events, candidates taking turns."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pycollective.comm.cuda.runtime import load

from ..measurement.stats import balanced_order

GRAPH_SECONDS = 2e-3
"""Duration of a graph in seconds: long compared with its launch."""
MOST_CALLS = 200
"""Maximum number of calls in a graph."""
PATIENCE = 10.0
"""Seconds after which a candidate is considered hung: longer than its kernels wait for a peer."""
_DELAY_BYTES = 64 << 20


@dataclass(frozen=True)
class Candidate:
    """A call to time.

    Attributes:
        name: of the row.
        call: enqueues the i-th call in the clock's stream; it chooses its set of buffers by i.
        captures: whether calls can be captured into a graph; otherwise they are enqueued one by one.
    """

    name: str
    call: Callable[[int], None]
    captures: bool = True


@dataclass(frozen=True)
class Timing:
    """Seconds per call in each round, the number of calls between two events, and a function to launch them again."""

    rounds: tuple[float, ...]
    calls: int
    launch: Callable[[], None]

    @property
    def seconds(self) -> float:
        """Seconds of the median round."""
        return sorted(self.rounds)[len(self.rounds) // 2]


class Clock:
    """A stream of a device, and timing on it."""

    def __init__(self, device: int = 0) -> None:
        self.cuda: Any = load()
        self.device = device
        self._stream = self.cuda.Stream(device)
        self.stream = int(self._stream.address)
        self.now = ""  # the candidate that is being timed

    def synchronize(self) -> None:
        """Wait for the stream; TimeoutError after PATIENCE seconds."""
        event = self.cuda.Event(self.device)
        event.record(self.stream)
        end = time.monotonic() + PATIENCE
        while not event.done():
            if time.monotonic() > end:
                raise TimeoutError(f"the stream has not completed within {PATIENCE:g} s")
            time.sleep(0)

    def between_events(self, launch: Callable[[], None], delay: float = 0.0) -> float:
        """Duration in seconds of the work that `launch` enqueues.

        Args:
            delay: seconds for which the stream is busy before, so that the host's launches are not measured.
        """
        before, after = (self.cuda.Event(self.device, timed=True) for _ in range(2))
        if delay:
            self._delay(delay)
        before.record(self.stream)
        launch()
        after.record(self.stream)
        self.synchronize()
        return float(after.seconds_since(before))

    def compare(self, candidates: Sequence[Candidate], rounds: int = 9, sets: int = 1) -> list[Timing]:
        """Time candidates in turns: each once per round, in a balanced order.

        Args:
            sets: of buffers; a graph contains a multiple of them.
        """
        prepared = [self._prepare(candidate, sets) for candidate in candidates]
        taken: list[list[float]] = [[] for _ in candidates]
        for turn in range(rounds):
            for i in balanced_order(len(prepared), turn):
                launch, calls, delay = prepared[i]
                self.now = candidates[i].name
                taken[i].append(self.between_events(launch, delay) / calls)
        return [Timing(tuple(times), calls, launch) for times, (launch, calls, _) in zip(taken, prepared, strict=True)]

    def _delay(self, seconds: float) -> None:
        """Occupy the stream with copies."""
        copy, each = self._copying
        for _ in range(math.ceil(seconds / max(each, 1e-6))):
            copy()

    @functools.cached_property
    def _copying(self) -> tuple[Callable[[], None], float]:
        """A copy, and its duration in seconds."""
        into, source = (self.cuda.allocate_plain(self.device, _DELAY_BYTES) for _ in range(2))

        def copy() -> None:
            self.cuda.copy(into.address, source.address, _DELAY_BYTES, self.stream, self.device)

        copy()
        return copy, self.between_events(copy)

    def _prepare(self, candidate: Candidate, sets: int) -> tuple[Callable[[], None], int, float]:
        """A function that launches a sufficiently long run of calls, their number, and the delay; warmed up."""
        self.now = candidate.name
        candidate.call(0)
        self.synchronize()  # exclude the setup in the first call
        once = self.between_events(lambda: candidate.call(0))
        wanted = min(MOST_CALLS, max(1, round(GRAPH_SECONDS / max(once, 1e-7))))
        calls = min(MOST_CALLS, -(-wanted // sets) * sets)

        def all_calls() -> None:
            for i in range(calls):
                candidate.call(i)

        launch, delay = all_calls, 0.0
        if candidate.captures:
            self.cuda.begin_capture(self.stream)
            try:
                all_calls()
            finally:
                graph = self.cuda.end_capture(self.stream)
            launch = lambda: graph.launch(self.stream)  # noqa: E731
        else:
            begin = time.perf_counter()
            self.between_events(launch)
            delay = time.perf_counter() - begin  # at least the host's part
        for _ in range(2):
            self.between_events(launch, delay)
        return launch, calls, delay


def copy_ceiling(clock: Clock, nbytes: int = 1 << 30) -> float:
    """Bytes per second of a large copy within the device's memory, counting reads and writes."""
    source, into = (clock.cuda.allocate_plain(clock.device, nbytes) for _ in range(2))

    def call(_: int) -> None:
        clock.cuda.copy(into.address, source.address, nbytes, clock.stream, clock.device)

    # Not in a graph, whose copies were slower on an H200: 2.75 against 4.2 TB/s.
    (timing,) = clock.compare([Candidate("copy", call, captures=False)])
    return 2 * nbytes / timing.seconds
