"""Mixing of parameters with those of neighbours, with weights that keep the mean over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pycollective import checks

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator

Neighbours = Callable[[int, int, int], Mapping[int, float]]
"""(rank, size, step) -> {source: weight}; the same function on all ranks."""

_TOLERANCE = 1e-6


class Mixing:
    """Mixes arrays in the steps of an optimizer, after a check of the graph's columns.

    Attributes:
        comm: of the participating ranks.
        graph: the weights.
    """

    def __init__(self, comm: Communicator, graph: Neighbours) -> None:
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
        """Check that every rank is read with weights that sum to 1, the same on all ranks, without communication.

        Otherwise mixing would move the mean over the ranks towards ranks that are read with more weight than others.

        Raises:
            ValueError: a column of the matrix has another sum, or a source is not a rank.
            TypeError: the graph did not return a mapping of ranks to numbers.
        """
        size = self.comm.size
        columns = [0.0] * size
        for rank in range(size):
            weights = checks.instance(self.graph(rank, size, step), "graph(...)", Mapping, "a dict {source: weight}")
            for source, weight in weights.items():
                source = checks.integer(source, f"a source of rank {rank}", 0, size - 1)
                columns[source] += checks.number(weight, f"the weight of rank {source} for rank {rank}")
        for column, total in enumerate(columns):
            if abs(total - 1) > _TOLERANCE:
                raise ValueError(
                    f"column {column} of the graph sums to {total:.6g} in step {step}: the weights with which ranks "
                    f"read rank {column} must sum to 1, or the mean over the ranks changes"
                )
