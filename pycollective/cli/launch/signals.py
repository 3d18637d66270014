"""The signals that a launcher passes on to its ranks."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def handled_by(handle: Callable[[int], object]) -> Iterator[None]:
    """Meanwhile FORWARDED signals of this process call `handle`; only the main thread of a process can have that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda got, _: handle(got)) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
