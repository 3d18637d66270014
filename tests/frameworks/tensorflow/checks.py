"""Checks as functions that a rank runs one after the other."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any


class Checks(dict[str, Callable[[], None]]):
    """A decorator that collects checks, by name."""

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        self[function.__name__] = function
        return function

    def outcomes(self) -> dict[str, str]:
        """Check -> "" or its traceback."""
        found = {}
        for name, function in self.items():
            try:
                function()
                found[name] = ""
            except BaseException:
                found[name] = traceback.format_exc()
            print(name, file=sys.stderr, flush=True)
        return found


def raises(kind: Any, words: str, function: Callable[[], Any]) -> BaseException:
    try:
        function()
    except kind as error:
        assert words in str(error), f"{words!r} is not in {error}"
        return error
    raise AssertionError(f"did not raise {kind}")
