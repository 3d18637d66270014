"""The submission of a backward pass's gradients to the engine: small ones together, as each submit has a cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from pycollective.engine import Item, Work
from pycollective.hvd.basics import engine_of
from pycollective.hvd.handles import internal_errors
from pycollective.hvd.process_sets import ProcessSet

TOGETHER = 256 << 10
"""Bytes of held gradients that are submitted at once: more of them would only delay their reduction."""

Started = Callable[[Work], None]


class Submission:
    """Gradients that are to be reduced over the ranks of a process set, each by itself: not as a group."""

    def __init__(self, process_set: ProcessSet) -> None:
        self._process_set = process_set
        self._held: list[tuple[Item, Started]] = []
        self._bytes = 0
        self._queued = False

    def add(self, item: Item, started: Started) -> None:
        """Submit an item, now or with later ones; `started` is called with its work."""
        self._held.append((item, started))
        self._bytes += item.x.nbytes
        if self._bytes >= TOGETHER:
            self.flush()

    def end_with_backward(self) -> None:
        """Within a backward pass: what is held when it ends is submitted then."""
        if self._held and not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)  # noqa: SLF001 - as torch's own wrappers

    def _end(self) -> None:
        self._queued = False
        self.flush()

    def flush(self) -> None:
        """Submit what is held.

        Raises:
            HorovodInternalError: a rank has been lost.
        """
        held, self._held, self._bytes = self._held, [], 0
        if held:
            items, started = zip(*held, strict=True)
            self.submit(items, started, grouped=False)

    def submit(self, items: Sequence[Item], started: Sequence[Started], grouped: bool) -> None:
        """Submit items at once; see Engine.submit."""
        with internal_errors():
            works = engine_of(self._process_set).submit(items, grouped)
        for start, work in zip(started, works, strict=True):
            start(work)

    def clear(self) -> None:
        """Forget what is held, of an aborted step."""
        self._held, self._bytes, self._queued = [], 0, False
