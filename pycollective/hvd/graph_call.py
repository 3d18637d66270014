"""A call of this library from a framework's compiled graph, whatever the framework."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class GraphCall(Protocol):
    """One execution of an operation of the graph.

    Attributes:
        inputs: the operands; views of the framework's memory, to be read until `done` is called, never written.
    """

    inputs: Sequence[NDArray[Any]]

    def output(self, index: int, shape: Sequence[int]) -> NDArray[Any]:
        """The memory of a result, uninitialized; called once for each result, on any thread."""
        ...

    def done(self, error: BaseException | None) -> None:
        """Complete the call, once, on any thread, when all results have been written, or with the error."""
        ...


Start = Callable[[GraphCall], None]
"""Starts what an operation of the graph does; it may return before that has completed."""


class _Blocking:
    def __init__(self, inputs: Sequence[NDArray[Any]], dtypes: Sequence[Any]) -> None:
        self.inputs, self._dtypes = inputs, dtypes
        self.outputs: list[Any] = [None] * len(dtypes)
        self._completed = threading.Event()
        self._error: BaseException | None = None

    def output(self, index: int, shape: Sequence[int]) -> NDArray[Any]:
        self.outputs[index] = np.empty(tuple(shape), self._dtypes[index])
        result: NDArray[Any] = self.outputs[index]
        return result

    def done(self, error: BaseException | None) -> None:
        self._error = error
        self._completed.set()

    def wait(self) -> list[Any]:
        self._completed.wait()
        if self._error is not None:
            raise self._error
        return self.outputs


def run(start: Start, inputs: Sequence[NDArray[Any]], dtypes: Sequence[Any]) -> list[NDArray[Any]]:
    """Run one and wait for it, where a framework can only call a function that returns the results.

    Args:
        dtypes: NumPy's, of the results.
    """
    call = _Blocking(inputs, dtypes)
    start(call)
    return call.wait()
