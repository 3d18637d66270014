"""The noise of gradients: its scale, which bounds the useful batch, and factors that add it to large batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective import checks
from pycollective.comm.world import given_or_world
from pycollective.optim.arrays import Arrays, like, named, namespace
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


class GradientNoise:
    """Factors of mean 1 on the gradients of rows, or of micro-batches, of a large batch.

        g = 1 / M * sum of z[n] * g[n] over the M rows of the batch,       z[n] normal with mean 1 and variance sigma^2
        sigma^2 = M / m - 1

    The rows' gradients g[n] have about the variance C about their mean; that of g is then about (1 + sigma^2) C / M,
    which is C / m, that of a batch of m rows. As the gradient is linear in the loss, it suffices to multiply the loss
    of each row (`rows`). Where only the mean loss of a micro-batch is known, multiply its gradients (`micro_batch`):
    the variance in the directions of C is the same, but the mean gradient itself is scaled more, by 1 +- sigma /
    sqrt(K) for K micro-batches in a batch. Source: Hoffer, Hubara and Soudry, "Train longer, generalize better", 2017,
    section 4, where sigma^2 is proportional to M, https://arxiv.org/abs/1705.08741

        noise = GradientNoise(batch=4096, base=128)
        loss = noise.rows(losses, step).mean()          # losses: of this rank's rows; NumPy's, torch's, ...
        noise.micro_batch(gradients, step)              # or: in place, before they are averaged or accumulated

    The factors depend on the seed, the step, the part and the rank alone: a training that continues from a checkpoint
    draws the same.

    Attributes:
        sigma: standard deviation of the factors; may be changed between steps.
    """

    def __init__(self, batch: int, base: int, *, seed: int = 0, comm: Communicator | None = None) -> None:
        """
        Args:
            batch: M, rows of all ranks together in one step.
            base: m, rows of the batch whose variance is wanted; at most `batch`.
            seed: of the factors.
            comm: provides the rank; by default that of `pycollective.init`.

        Raises:
            TypeError, ValueError: not integers, or out of range.
        """
        batch = checks.integer(batch, "batch", 1, (1 << 63) - 1)
        base = checks.integer(base, "base", 1, batch)
        self.sigma = math.sqrt(batch / base - 1)
        self._seed = checks.integer(seed, "seed", 0)
        self._rank = given_or_world(comm).rank

    def factors(self, count: int, step: int, part: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
        """`count` factors of this rank in a step.

        Args:
            count: number of factors.
            step: of the training, from 0.
            part: number of the micro-batch in this rank's step, if there are several.

        Returns:
            1-d float64, independent of those of any other rank, step and part.

        Raises:
            TypeError, ValueError: a negative number, or not an integer.
        """
        count, step = checks.integer(count, "count", 0), checks.integer(step, "step", 0)
        part = checks.integer(part, "part", 0)
        sequence = np.random.SeedSequence(self._seed, spawn_key=(self._rank, step, part))
        return np.random.default_rng(sequence).normal(1.0, self.sigma, count)

    def rows(self, losses: Any, step: int, part: int = 0) -> Any:
        """The losses of rows, each multiplied by its factor: their mean has the noisy gradient.

        Args:
            losses: 1-d floating-point array of any library, one element per row of this rank; torch's autograd and
                others follow the product.
            step, part: see `factors`.

        Returns:
            an array like `losses`.

        Raises:
            ValueError: not one loss per row.
            TypeError: not an array.
        """
        if len(getattr(losses, "shape", (0,))) != 1:
            raise ValueError(f"losses must have one element per row, not {checks.shown(losses)}")
        factors = like(self.factors(losses.shape[0], step, part), losses)
        return losses * namespace(losses).asarray(factors, dtype=losses.dtype)

    def micro_batch(self, grads: Arrays, step: int, part: int = 0) -> None:
        """Multiply all gradients of one micro-batch by one factor, in place.

        Args:
            grads: a dict or list of floating-point arrays.
            step, part: see `factors`.

        Raises:
            TypeError: no arrays.
        """
        factor = float(self.factors(1, step, part)[0])
        for g in named(grads, "grads").values():
            g *= factor
