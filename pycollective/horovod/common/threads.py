"""`horovod.runner.util.threads`, as far as Horovod's own tests import it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any


def in_thread(
    target: Callable[..., Any],
    args: Sequence[Any] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Start target(*args) in a new thread, which is returned; `silent`: ignore exceptions of `target`."""

    def run() -> None:
        with contextlib.suppress(*(Exception,) * silent):
            target(*args)

    thread = threading.Thread(target=run, name=name, daemon=daemon)
    thread.start()
    return thread
