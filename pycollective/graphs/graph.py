"""Graph: the weights of every rank in every step, their matrix, and how fast mixing with them removes disagreement."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pycollective import checks

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Weights = dict[int, float]
"""Source -> weight, in ascending order of the sources, the rank's own among them."""


@dataclass(frozen=True, eq=False)  # compared by identity, which finds remembered matrices fast
class Graph:
    """A graph of neighbours, called as `graph(rank, size, step=0)`.

    Its weights are evaluated once for each step, or each step of a period, while those of an ordinary function are
    evaluated in every call: a function that depends on nothing else is made a Graph by `Graph("name", function)`.

    Attributes:
        name: as on the command line: "ring", "random_pairs(seed=3)".
        weights: (rank, size, step) -> the weights of a rank; depends on nothing else.
        period: the number of steps after which the weights repeat, or size -> that number; None: they never do.
        mean_contraction: for graphs without a period, size -> the mean factor of the squared disagreement in a step:
            the largest eigenvalue, except that of the mean itself, of the expectation of WᵀW.
    """

    name: str
    weights: Callable[[int, int, int], Weights] = field(repr=False)
    period: int | Callable[[int], int] | None = field(default=1, repr=False)
    mean_contraction: Callable[[int], float] | None = field(default=None, repr=False)

    def __call__(self, rank: int, size: int, step: int = 0) -> Weights:
        """The sources that a rank reads, with their weights, which sum to 1.

        Args:
            rank: the rank that reads.
            size: number of ranks.
            step: number of the step, from 0.

        Returns:
            {source: weight}, in ascending order, the rank itself among them.

        Raises:
            ValueError: rank is not below size, size is below 1, step is negative, or the graph has another size.
            TypeError: not integers.
        """
        size = checks.integer(size, "size", 1)
        rank, step = checks.integer(rank, "rank", 0, size - 1), checks.integer(step, "step", 0)
        return self.weights(rank, size, step)

    def period_of(self, size: int) -> int | None:
        """The number of steps after which the weights of `size` ranks repeat; None: they never do."""
        return self.period(size) if callable(self.period) else self.period

    def matrix(self, size: int, step: int = 0) -> NDArray[np.float64]:
        """All weights of a step.

        Args:
            size: number of ranks, n.
            step: number of the step, from 0.

        Returns:
            float64 of shape (n, n): row r has the weights of rank r, so that mixing x gives `matrix @ x`.

        Raises:
            ValueError, TypeError: as for a call.
        """
        import numpy as np

        size = checks.integer(size, "size", 1)
        found = np.zeros((size, size))
        for rank in range(size):
            for source, weight in self(rank, size, step).items():
                found[rank, source] = weight
        return found

    def spectral_gap(self, size: int) -> float:
        """1 - r, where mixing multiplies the disagreement of the ranks by r per step, asymptotically.

        With the matrix W of a graph that is the same in every step, r is the second largest absolute value of its
        eigenvalues (Xiao and Boyd, "Fast linear iterations for distributed averaging", 2004). If the graph repeats
        after k steps, r is the k-th root of that of the product of the k matrices. If every step draws a new one,
        r² is the second largest eigenvalue of the expectation of WᵀW: the mean factor of the squared disagreement
        (Boyd, Ghosh, Prabhakar and Shah, "Randomized gossip algorithms", 2006).

        Args:
            size: number of ranks.

        Returns:
            from 0 (never agrees) to 1 (agrees after a period).

        Raises:
            ValueError, TypeError: as for a call.
        """
        import numpy as np

        size = checks.integer(size, "size", 1)
        if self.mean_contraction is not None:
            return 1 - math.sqrt(self.mean_contraction(size))
        period = self.period_of(size) or 1
        product: Any = np.eye(size)
        for step in range(period):
            product = self.matrix(size, step) @ product
        rest = float(np.abs(np.linalg.eigvals(product - 1 / size)).max())  # without the eigenvalue 1, of the mean
        rounding = 4 * size * float(np.finfo(np.float64).eps)
        return 1 - (0.0 if rest < rounding else float(rest ** (1 / period)))


def even(members: Collection[int]) -> Weights:
    """Give each of the members an equal weight."""
    weight = 1 / len(members)
    return dict.fromkeys(sorted(members), weight)


def metropolis_hastings(rank: int, neighbours: list[set[int]]) -> Weights:
    """The weights of a rank in a symmetric graph: 1 / (1 + the larger degree of the two) for each neighbour.

    `neighbours` has those of each rank, without itself.
    The rank itself has what is missing to 1. They are symmetric, and so doubly stochastic: Xiao, Boyd and Lall, "A
    scheme for robust distributed sensor fusion based on average consensus" (IPSN 2005), after the chain of Metropolis
    (1953) and Hastings (1970).
    """
    mine = neighbours[rank]
    found = {source: 1 / (1 + max(len(mine), len(neighbours[source]))) for source in mine}
    found[rank] = 1 - sum(found[source] for source in sorted(found))
    return dict(sorted(found.items()))
