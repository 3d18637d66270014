"""Records the events of an engine between hosts; on one host, csrc/engine/timeline.cpp does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from pycollective import _core
from pycollective.engine import clocks
from pycollective.engine.round_work import RoundWork

Event = tuple[str, str, str, int, int]
"""(phase, collective, operation, begin, end), as `_core.Engine.take_events` has them; times by clocks.now()."""


class RoundTrace:
    """Records phases while `on`; another thread takes them."""

    def __init__(self) -> None:
        self.on = False
        self._lock = threading.RLock()
        self._events: list[Event] = []

    def take(self) -> list[Event]:
        """Return the events recorded since the last call."""
        with self._lock:
            events, self._events = self._events, []
        return events

    @contextlib.contextmanager
    def span(self, phase: str, wanted: bool = True) -> Iterator[None]:
        """Record a phase of a batch, for the duration of the with statement."""
        if not self.on or not wanted:
            yield
            return
        begin = clocks.now()
        yield
        with self._lock:
            self._events.append((phase, "", "", begin, clocks.now()))

    def batch(
        self, batch: Sequence[_core.AgreedOperation], works: Sequence[RoundWork | None], ready: int, begin: int
    ) -> None:
        """Record a completed batch: its operations, this rank's work in each, when all ranks had announced them, and
        when it began."""
        if not self.on:
            return
        end = clocks.now()
        rows: list[Event] = [("cycle", "", "", begin, begin)]
        for one, work in zip(batch, works, strict=True):
            kind = one.collective
            if work is not None:
                rows.append(("negotiate", kind, one.name, work.submitted, ready))
            rows += [("queue", "", one.name, ready, begin), ("execute", kind, one.name, begin, end)]
        with self._lock:
            self._events += rows
