"""The submission of a backward pass's gradients to the engine: small ones together, as each submit has a cost.

What is left when the pass ends is submitted by `synchronize`. If it were submitted before, the engine's thread would
begin with it, on a core that the program uses. For the same reason nothing is submitted earlier where all ranks are on
one host and its cores are busy computing: with two ranks on two cores, each with gradients of 25 MB, a step took 26 ms
instead of 29 (21 without communication).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from pycollective.comm.arguments import arrays
from pycollective.comm.host.cores import computing_threads, have_spare
from pycollective.engine import Item, Work
from pycollective.hvd.basics import engine_of, local_size
from pycollective.hvd.handles import internal_errors
from pycollective.hvd.process_sets import ProcessSet

TOGETHER = 256 << 10
"""Bytes of held gradients that are submitted during backward: more of them would only delay their reduction."""

Started = Callable[[Work], None]


class Submission:
    """Gradients that are to be reduced over the ranks of a process set, each by itself: not as a group."""

    def __init__(self, process_set: ProcessSet) -> None:
        self._process_set = process_set
        self._held: list[tuple[Item, Started]] = []
        self._bytes = 0

    def add(self, item: Item, started: Started) -> None:
        """Submit an item, now or with later ones; `started` is called with its work."""
        self._held.append((item, started))
        self._bytes += item.x.nbytes
        if self._bytes >= TOGETHER and (arrays.on_device(item.x) or self._has_time):
            self.flush()

    @functools.cached_property
    def _has_time(self) -> bool:
        """Whether gradients can be reduced while the program computes, without slowing it down."""
        comm = engine_of(self._process_set).comm
        return comm.local_size < comm.size or have_spare(local_size(), computing_threads())

    def run_with(self, item: Item) -> None:
        """Submit what is held, and at the same time run another operation, of this name on all ranks.

        Raises: as `flush`, and what the operation raises.
        """
        self.flush(item)[-1].wait()

    def flush(self, *others: Item) -> list[Work]:
        """Submit what is held, and other operations that are waited for immediately.

        Raises:
            HorovodInternalError: a rank has been lost.
        """
        held, self._held, self._bytes = self._held, [], 0
        items = [*(item for item, _ in held), *others]
        return self.submit(items, [started for _, started in held], False, bool(others)) if items else []

    def submit(self, items: Sequence[Item], started: Sequence[Started], grouped: bool, now: bool = False) -> list[Work]:
        """Submit items at once; see Engine.submit. `started`: called with the works of the first."""
        with internal_errors():
            works = engine_of(self._process_set).submit(items, grouped, now)
        for start, work in zip(started, works, strict=False):
            start(work)
        return works

    def clear(self) -> None:
        """Forget what is held, of an aborted step."""
        self._held, self._bytes = [], 0
