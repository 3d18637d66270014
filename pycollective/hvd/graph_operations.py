"""Operations that a framework's graph starts: collectives, and the gradients of a step. They never block.

Names of the operations are given, as graphs name theirs when they are traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective.hvd import basics, handles
from pycollective.hvd.gradients.gradient_group import GradientGroup, when_all_done
from pycollective.hvd.graph_call import GraphCall
from pycollective.hvd.operations import HorovodOperation, Output
from pycollective.hvd.process_sets import ProcessSet

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
