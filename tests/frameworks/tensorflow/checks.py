"""Checks as functions that a rank runs one after the other."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any


class Checks:
    """A decorator that collects checks."""

    def __init__(self) -> None:
        self.functions: list[Callable[[], None]] = []

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        self.functions.append(function)
        return function

    def outcomes(self) -> dict[str, str]:
        """Check -> "" or its traceback."""
        found = {}
        for function in self.functions:
            try:
                function()
                found[function.__name__] = ""
            except BaseException:
                found[function.__name__] = traceback.format_exc()
            print(function.__name__, file=sys.stderr, flush=True)
        return found


def raises(kind: Any, words: str, function: Callable[[], Any]) -> BaseException:
    try:
        function()
    except kind as error:
        assert words in str(error), f"{words!r} is not in {error}"
        return error
    raise AssertionError(f"did not raise {kind}")
