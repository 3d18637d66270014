"""Deadlines of tests, which are longer on a machine that is slow or busy."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable

_LOOPS = 4_000_000
_USUAL = 0.045
"""Seconds that they take on the machine for which the deadlines were chosen."""
_VARIABLE = "PC_TEST_SLOWNESS"


@functools.cache
def slowness() -> float:
    """How much slower this machine was when the first process of the tests began; at least 1."""
    if _VARIABLE not in os.environ:
        started = time.perf_counter()
        for _ in range(_LOOPS):
            pass
        os.environ[_VARIABLE] = str(max(1.0, (time.perf_counter() - started) / _USUAL))
    return float(os.environ[_VARIABLE])


def deadline(seconds: float) -> float:
    """Seconds after which a test that is not done hangs."""
    return seconds * slowness()


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Wait until a condition holds; an AssertionError if it does not in time."""
    end = time.monotonic() + deadline(seconds)
    while not condition():
        assert time.monotonic() < end, f"the condition did not hold within {seconds} s"
        time.sleep(0.001)
