"""Mixing of parameters with those of neighbours, with weights that keep the mean over the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pycollective import checks

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator
    from pycollective.schedule.mixing import Graph


class Mixing:
    """Mixes arrays in the steps of an optimizer, after a check of the graph's columns.

    Attributes:
        comm: of the participating ranks.
        graph: the weights.
    """

    def __init__(self, comm: Communicator, graph: Graph) -> None:
        """
        Raises:
            TypeError: graph is not a function.
        """
        self.comm, self.graph = comm, checks.function(graph, "graph", "a function of (rank, size, step)")

    def start(self, x: Any, out: Any, step: int) -> Callable[[], None]:
        """Collective: start to store the weighted sum of the ranks' x in out, which may be x.

        Returns:
            a function that waits for it.
        """
        return self.comm.imix(x, self.graph, step, out).wait

    def check(self, step: int) -> None:
        """Check that every rank is read with weights that sum to 1; equal on all ranks, without communication.

        Otherwise mixing would move the mean over the ranks towards ranks that are read with more weight than others.

        Raises:
            TypeError, ValueError: as comm.mix, for any rank's weights; or a column of the matrix has another sum.
        """
        from pycollective.comm.arguments.graphs import evaluate
        from pycollective.schedule.mixing import TOLERANCE

        for column, total in enumerate(evaluate(self.graph, self.comm.size, step).column_sums):
            if abs(total - 1) > TOLERANCE:
                raise ValueError(
                    f"column {column} of the graph sums to {total:.6g} in step {step}: the weights with which ranks "
                    f"read rank {column} must sum to 1, or the mean over the ranks changes"
                )
