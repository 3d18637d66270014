"""`log`: values from a training function to the callbacks of the executor's caller."""

from __future__ import annotations

import warnings
from typing import Any

_queue: Any = None
_warned = False


def configure(queue: Any) -> None:
    """Where `log` puts values: a ray.util.queue.Queue; None: nobody reads them."""
    global _queue
    _queue = queue


def log(info_dict: dict[str, Any]) -> None:
    """Pass a dictionary, on any rank, to the callbacks that were given to `run` or `execute`.

    If none were given, the first call in a process issues a warning and nothing is passed.
    """
    global _warned
    if _queue is not None:
        _queue.put(info_dict)
    elif not _warned:
        _warned = True
        warnings.warn("log() has no effect: this call of the executor has no callbacks", RuntimeWarning, stacklevel=2)
