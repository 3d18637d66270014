"""The gradient noise scale: an estimate of the largest useful batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective import checks
from pycollective.comm.world import given_or_world
from pycollective.optim.arrays.containers import Arrays, named, namespace
from pycollective.optim.rules import widened

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator


class NoiseScale:
    """The simple noise scale tr(S) / |G|^2 of per-row gradients with mean G and covariance S.

    Far below it, every additional row in the batch helps; far above it, hardly any does. It is estimated from the
    squared norms of the gradients of B rows on each rank, averaged over the n ranks (small), and of their average,
    which is that of n B rows (large):

        |G|^2 = (n B large - B small) / (n B - B)
        tr(S) = (small - large) / (1 / B - 1 / (n B))

    Both are unbiased but noisy; each is smoothed over the steps before the division. Source: McCandlish,
    Kaplan, Amodei et al., "An Empirical Model of Large-Batch Training", 2018, appendix A.1,
    https://arxiv.org/abs/1812.06162

    Attributes:
        signal: the smoothed |G|^2. noise: the smoothed tr(S). Both NaN before the first update.
    """

    def __init__(self, rows: int, decay: float = 0.99, comm: Communicator | None = None) -> None:
        """
        Args:
            rows: B, in one gradient of one rank.
            decay: of the exponential moving averages, from 0 (none) to below 1.
            comm: of the ranks whose gradients are averaged; by default that of `pycollective.init`.

        Raises:
            ValueError: fewer than two ranks, whose gradients cannot be compared; another number out of range.
        """
        rows, decay = checks.integer(rows, "rows", 1), checks.number(decay, "decay", 0, below=1)
        self.comm = given_or_world(comm)
        if self.comm.size < 2:
            raise ValueError("the noise is estimated from differences between ranks: at least two ranks are needed")
        self.rows, self.decay = rows, decay
        self.signal = self.noise = math.nan
        self._weight = 0.0  # total weight of the moving averages

    @property
    def value(self) -> float:
        """The noise scale, in rows; NaN before the first update, and if the estimate of |G|^2 is not above 0."""
        return self.noise / self.signal if self.signal > 0 else math.nan

    def update(self, local: Arrays | float, averaged: Arrays | float) -> float:
        """Collective, of one number.

        Args:
            local: this rank's gradients before they are averaged, in a dict or list; or their squared norm.
            averaged: the same after averaging.

        Returns:
            `value`.
        """
        mine, large = np.array([_square(local, "local")]), _square(averaged, "averaged")
        small = float(self.comm.allreduce(mine, op="avg")[0])
        few, many = self.rows, self.rows * self.comm.size
        signal = (many * large - few * small) / (many - few)
        noise = (small - large) / (1 / few - 1 / many)
        keep = self.decay * self._weight
        self._weight = keep + 1 - self.decay
        share = (1 - self.decay) / self._weight  # weight of the new value: 1 at first
        self.signal = signal if not keep else (1 - share) * self.signal + share * signal
        self.noise = noise if not keep else (1 - share) * self.noise + share * noise
        return self.value


def _square(gradients: Arrays | float, what: str) -> float:
    """The squared norm of all arrays together."""
    if not isinstance(gradients, (Mapping, Sequence)):
        return checks.number(gradients, what, 0, finite=False, nan=True)
    parts: Sequence[Any] = [widened(g) for g in named(gradients, what).values()]
    return math.fsum(float(namespace(g).sum(g * g)) for g in parts)
