"""Calls of this library from a framework's compiled graph: collectives, and the gradients of a step. They never block.

Names of the operations are given, as graphs name theirs when they are traced.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pycollective.hvd import basics, handles
from pycollective.hvd.gradients.gradient_group import GradientGroup, Slices, when_all_done
from pycollective.hvd.operations import HorovodOperation, Output
from pycollective.hvd.process_sets import ProcessSet

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


def start(operation: HorovodOperation, label: str, process_set: ProcessSet, call: GraphCall) -> None:
    """Start an operation of this name on all ranks."""
    try:
        with handles.internal_errors():
            items = _items(operation, label, process_set, call)
            works = basics.engine_of(process_set).submit(items) if items else []
    except Exception as error:
        call.done(error)
        return

    def finish(error: BaseException | None) -> None:
        if error is None and operation.late:
            try:
                for index, array in enumerate(operation.results([work.wait() for work in works])):
                    call.output(index, np.shape(array))[...] = array
            except Exception as found:
                error = found
        call.done(error)

    when_all_done(works, finish)


def _items(operation: HorovodOperation, label: str, process_set: ProcessSet, call: GraphCall) -> list[Any]:
    try:
        return operation.items(label, process_set, call.inputs, call.output)
    except Exception as error:
        handles.refuse(label, process_set, error)
        raise


@dataclass(slots=True)
class Gradients:
    """The gradients of a step, see GradientGroup, as the operands of a graph's operation and its results.

    Attributes:
        operands: how many each of the group's variables has: 0, a gradient, or the values and indices of Slices.
    """

    group: GradientGroup
    operands: Sequence[int]

    def lay_out(self, inputs: Sequence[NDArray[Any]], output: Output) -> tuple[list[Any], list[Any]]:
        """The arguments of the group: a gradient and its output for each variable."""
        gradients: list[Any] = []
        outputs: list[Any] = []
        numbers = itertools.count()
        for count in self.operands:
            gradient: Any = None
            out: Any = None
            mine = list(itertools.islice(numbers, count))
            if len(mine) == 1:
                gradient = inputs[mine[0]]
                out = output(mine[0], gradient.shape)
            elif mine:
                gradient = Slices(*(inputs[i] for i in mine))
                out = Slices(*(functools.partial(output, i) for i in mine))
            gradients.append(gradient)
            outputs.append(out)
        return gradients, outputs

    def start(self, call: GraphCall) -> None:
        """Called by a graph, whose operation has a scalar 0 as its result if there are no gradients."""
        try:
            gradients, outputs = self.lay_out(call.inputs, call.output)
            if not any(self.operands):
                call.output(0, ())[...] = 0
        except Exception as error:
            call.done(error)
            return
        self.group.start(gradients, outputs, call.done)
