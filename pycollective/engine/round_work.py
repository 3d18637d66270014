"""A rank's handle of an operation of `Rounds`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from pycollective.engine import clocks
from pycollective.engine.operation import Item
from pycollective.errors import TimeoutError

_logger = logging.getLogger(__name__)


class RoundWork:
    """See pycollective.engine.operation.Work.

    Attributes:
        item: the submitted operation. submitted: time of submission, by clocks.now().
        result, error: its outcome.
        on_wait: called by wait() after success, in the waiting thread.
    """

    def __init__(self, item: Item, require_outside: Callable[[], None]) -> None:
        """`require_outside`: raises if the caller is the thread that would run this operation."""
        self.name, self.item = item.name, item
        self.submitted = clocks.now()
        self.result: Any = None
        self.error: BaseException | None = None
        self.on_wait: Callable[[], None] | None = None
        self._done = threading.Event()
        self._lock = threading.RLock()  # a signal handler may run while this thread holds it
        self._require_outside = require_outside
        self._callbacks: list[Callable[[], None]] = []

    def done(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> Any:
        if not self._done.is_set():
            self._require_outside()
        if not self._done.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
            raise TimeoutError(f"operation {self.name!r} has not completed yet; it can be waited for again")
        if self.error is not None:
            raise self.error
        if self.on_wait is not None:
            self.on_wait()
        return self.result

    def flush(self) -> None:
        """Does nothing: between hosts an operation runs when its round is due, even if a thread waits for it."""

    def when_done(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def finish(self) -> None:
        """Called once, by the engine."""
        with self._lock:
            self._done.set()
        for callback in self._callbacks:
            try:
                callback()
            except Exception:
                _logger.exception("a callback of operation %r", self.name)
