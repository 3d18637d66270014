"""The collectives as operations on NumPy arrays: started from a framework's graph, or run at once.

Each is a class whose `start` is what a graph calls (see graph_call); it never blocks. `run` is the same for a caller
that waits. Names of the operations are given, as graphs name theirs when they are traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective.engine import Item
from pycollective.hvd import basics, handles, operations
from pycollective.hvd.arguments import operator_name
from pycollective.hvd.gradients.gradient_group import GradientGroup, when_all_done
from pycollective.hvd.graph_call import GraphCall
from pycollective.hvd.process_sets import ProcessSet

if TYPE_CHECKING:
    from numpy.typing import NDArray

Output = Callable[[int, Sequence[int]], "NDArray[Any]"]
"""Allocates a result: its index and shape."""


@dataclass(slots=True)
class GraphOperation:
    """A collective on several arrays.

    Attributes:
        name: of the operation on all ranks; the arrays of a group are numbered.
    """

    name: str
    process_set: ProcessSet

    def items(self, inputs: Sequence[NDArray[Any]], output: Output) -> list[Item]:
        """The operations to submit."""
        raise NotImplementedError

    def late(self, results: list[Any]) -> Sequence[Any]:
        """All results, where their shapes were unknown before; else nothing: they are in the memory of `output`."""
        return ()

    def start(self, call: GraphCall) -> None:
        """Called by a graph."""
        try:
            with handles.internal_errors():
                items = self._items(call.inputs, call.output)
                works = basics.engine_of(self.process_set).submit(items) if items else []
        except Exception as error:
            call.done(error)
            return
        when_all_done(works, lambda error: self._finish(call, works, error))

    def _finish(self, call: GraphCall, works: Sequence[Any], error: BaseException | None) -> None:
        if error is None:
            try:
                for index, array in enumerate(self.late([work.wait() for work in works])):
                    call.output(index, np.shape(array))[...] = array
            except Exception as found:
                error = found
        call.done(error)

    def run(self, inputs: Sequence[NDArray[Any]], output: Output) -> Sequence[Any]:
        """Returns the results whose shapes were unknown before, see `late`."""
        results: list[Any] = handles.run(self._items(inputs, output), self.process_set, list)
        return self.late(results)

    def _items(self, inputs: Sequence[NDArray[Any]], output: Output) -> list[Item]:
        try:
            return self.items(inputs, output)
        except Exception as error:
            handles.refuse(self.name, self.process_set, error)
            raise

    def _label(self, index: int, inputs: Sequence[Any]) -> str:
        return self.name if len(inputs) == 1 else f"{self.name}.{index}"


@dataclass(slots=True)
class Allreduce(GraphOperation):
    """The results have the inputs' shapes."""

    op: int
    prescale: float = 1.0
    postscale: float = 1.0

    def items(self, inputs: Sequence[NDArray[Any]], output: Output) -> list[Item]:
        if len(inputs) == 1:
            x = inputs[0]
            out = output(0, x.shape)
            return [operations.reduction(x, out, self.name, self.op, self.prescale, self.postscale)]
        parts = ((x, output(i, x.shape), f"{self.name}.{i}") for i, x in enumerate(inputs))
        return operations.reductions(parts, self.op, self.prescale, self.postscale)


@dataclass(slots=True)
class Allgather(GraphOperation):
    """The rows of all ranks. `complete`: fail if a rank has joined, instead of omitting its rows."""

    complete: bool = True

    def items(self, inputs: Sequence[NDArray[Any]], output: Output) -> list[Item]:
        return [
            Item("allgather", self._label(i, inputs), x if x.ndim else x.reshape(1), complete=self.complete)
            for i, x in enumerate(inputs)
        ]

    def late(self, results: list[Any]) -> Sequence[Any]:
        return results


@dataclass(slots=True)
class Broadcast(GraphOperation):
    """Broadcast from `root_rank`, a rank among all, to all of the set."""

    root_rank: int

    def items(self, inputs: Sequence[NDArray[Any]], output: Output) -> list[Item]:
        return [
            operations.broadcast(x, output(i, x.shape), self.root_rank, self._label(i, inputs), self.process_set)
            for i, x in enumerate(inputs)
        ]


@dataclass(slots=True)
class Alltoall(GraphOperation):
    """Inputs: the rows, and perhaps how many of them go to each rank. Results: rows, and how many came from each."""

    splits_dtype: np.dtype[Any]

    def items(self, inputs: Sequence[NDArray[Any]], output: Output) -> list[Item]:
        splits = inputs[1].tolist() if len(inputs) > 1 else None
        return [Item("alltoall", self.name, inputs[0], splits=splits)]

    def late(self, results: list[Any]) -> Sequence[Any]:
        rows, received = results[0]
        return rows, np.array(received, self.splits_dtype)


@dataclass(slots=True)
class ReduceScatter(GraphOperation):
    """This rank's rows of the reductions; the first ranks have one more if they do not divide evenly."""

    op: int
    prescale: float = 1.0
    postscale: float = 1.0

    def items(self, inputs: Sequence[NDArray[Any]], output: Output) -> list[Item]:
        op = operator_name(self.op)
        return [
            Item("reducescatter", self._label(i, inputs), x, op=op, prescale=self.prescale, postscale=self.postscale)
            for i, x in enumerate(inputs)
        ]

    def late(self, results: list[Any]) -> Sequence[Any]:
        return results


@dataclass(slots=True)
class Barrier(GraphOperation):
    """No inputs; the result is a scalar 0, as graphs need one."""

    def items(self, inputs: Sequence[NDArray[Any]], output: Output) -> list[Item]:
        output(0, ())[...] = 0
        return [Item("barrier", self.name)]


@dataclass(slots=True)
class Join(GraphOperation):
    """No inputs; the result is the rank that joined last."""

    def items(self, inputs: Sequence[NDArray[Any]], output: Output) -> list[Item]:
        return [Item("join", "pycollective.join")]

    def late(self, results: list[Any]) -> Sequence[Any]:
        handles.all_joined()
        return [np.int32(results[0])]


@dataclass(slots=True)
class Gradients:
    """The gradients of a step, see GradientGroup; results where this rank has a gradient.

    Attributes:
        present: whether this rank has a gradient, for each of the group's variables.
        sparse: of a variable whose gradient is sparse, and reduced elsewhere: it is only compared among the ranks.
    """

    group: GradientGroup
    present: Sequence[bool]
    sparse: Sequence[bool]

    def lay_out(self, inputs: Sequence[NDArray[Any]], output: Output) -> tuple[list[Any], list[Any]]:
        """The arguments of the group: a gradient and its output for each variable."""
        gradients: list[Any] = []
        outputs: list[Any] = []
        dense = iter(enumerate(inputs))
        for present, sparse in zip(self.present, self.sparse, strict=True):
            if not present:
                gradient = out = None
            elif sparse:
                gradient = out = np.empty(0, np.float32)
            else:
                index, gradient = next(dense)
                out = output(index, gradient.shape)
            gradients.append(gradient)
            outputs.append(out)
        return gradients, outputs

    def start(self, call: GraphCall) -> None:
        """Called by a graph."""
        try:
            gradients, outputs = self.lay_out(call.inputs, call.output)
        except Exception as error:
            call.done(error)
            return
        self.group.start(gradients, outputs, call.done)
