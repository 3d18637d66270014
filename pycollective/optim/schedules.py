"""Learning rates as functions of the batch size and the step.

A schedule is a function of the step, from 0, that returns a factor: the fraction of the full rate to use.

    full = linear_scaling(0.1, batch=8192, base=256)                     # 0.1 for 256 rows
    factor = warm_up(500, cosine(10_000), start=256 / 8192)

    optimizer.lr = full * factor(step)                                   # arrays: before each step
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)     # torch: an optimizer made with lr=full

Schedules multiply: `lambda step: cosine(1000)(step) * decay_steps([500])(step)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pycollective import checks

__all__ = [
    "GrowingBatch",
    "constant",
    "cosine",
    "decay_steps",
    "linear_scaling",
    "polynomial",
    "sqrt_scaling",
    "warm_up",
]

Schedule = Callable[[int], float]


def linear_scaling(lr: float, batch: int, base: int) -> float:
    """The rate for batches of `batch` rows if `lr` was good for `base`: k times as many rows, k times the rate.

    Source: Goyal et al., "Accurate, Large Minibatch SGD", 2017, https://arxiv.org/abs/1706.02677
    """
    return _rate(lr) * checks.number(batch, "batch", 0) / checks.number(base, "base", above=0)


def sqrt_scaling(lr: float, batch: int, base: int) -> float:
    """The rate for `batch` rows from `lr` for `base` rows, by the square root.

    k times as many rows get sqrt(k) times the rate, which preserves the variance of the steps.

    Source: Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014,
    https://arxiv.org/abs/1404.5997; used for LAMB by You et al., 2020.
    """
    return _rate(lr) * math.sqrt(checks.number(batch, "batch", 0) / checks.number(base, "base", above=0))


def constant() -> Schedule:
    """The full rate in all steps."""
    return lambda step: 1.0


def warm_up(steps: int, then: Schedule | None = None, start: float = 0.0) -> Schedule:
    """Linear from `start` to the value of `then` at step `steps`; from there on `then`.

    `then` counts from the beginning of training, including the warm-up; by default it is constant. Goyal et al. warm up
    over 5 epochs from the rate of the small batch: start=base / batch.
    """
    length, start = checks.number(steps, "steps", 0), checks.number(start, "start")
    following = constant() if then is None else checks.function(then, "then", "a schedule, a function of the step")

    def factor(step: int) -> float:
        if _step(step) >= length:
            return following(step)
        return start + (following(steps) - start) * step / steps

    return factor


def decay_steps(milestones: Sequence[int], factor: float = 0.1) -> Schedule:
    """Multiplied by `factor` at each of the milestones, which are step numbers."""
    factor, numbers = checks.number(factor, "factor"), _milestones(milestones)
    return lambda step: float(factor ** sum(_step(step) >= number for number in numbers))


def polynomial(steps: int, power: float = 1.0, end: float = 0.0) -> Schedule:
    """Fall from 1 to `end` at step `steps`, as (1 - step / steps) ** power; LARS uses power 2, LAMB 1."""
    length, end = checks.number(steps, "steps", above=0), checks.number(end, "end")
    power = checks.number(power, "power", 0)
    return lambda step: end + (1 - end) * (1 - min(_step(step) / length, 1)) ** power


def cosine(steps: int, end: float = 0.0) -> Schedule:
    """Fall from 1 to `end` at step `steps` by half a period of a cosine.

    Source: Loshchilov and Hutter, "SGDR", 2017, equation 5, without restarts, https://arxiv.org/abs/1608.03983
    """
    length, end = checks.number(steps, "steps", above=0), checks.number(end, "end")
    return lambda step: end + (1 - end) * (1 + math.cos(math.pi * min(_step(step) / length, 1))) / 2


@dataclass(frozen=True)
class GrowingBatch:
    """A batch that grows where the rate would decay, with the rate decaying once the batch cannot grow further.

    Source: Smith, Kindermans, Ying and Le, "Don't Decay the Learning Rate, Increase the Batch Size", 2018,
    https://arxiv.org/abs/1711.00489: the noise of SGD is proportional to rate / batch, so both are equivalent.

    Attributes:
        start: rows of the first batches, of all ranks together.
        milestones: step numbers at which the batch grows.
        growth: the factor; equivalent to `decay_steps(milestones, 1 / growth)` of the rate.
        limit: maximum number of rows in a batch; none by default.
    """

    start: int
    milestones: Sequence[int]
    growth: float = 10.0
    limit: int | None = None

    def __post_init__(self) -> None:
        checks.integer(self.start, "start", 1)
        checks.number(self.growth, "growth", 1)
        if self.limit is not None:
            checks.integer(self.limit, "limit", self.start)
        object.__setattr__(self, "milestones", tuple(_milestones(self.milestones)))

    def batch(self, step: int) -> int:
        """Rows of the batch at a step, of all ranks together, rounded."""
        rows = round(self._wanted(step))
        return rows if self.limit is None else min(rows, self.limit)

    def lr(self, step: int) -> float:
        """A schedule of `step`: 1 while the batch can grow, then a decay equivalent to further growth."""
        return 1.0 if self.limit is None else min(1.0, self.limit / self._wanted(step))

    def passes(self, step: int, rows: int, ranks: int) -> int:
        """Backward passes to accumulate for the batch at a `step`, if each of `ranks` computes `rows` at a time.

        Rounded up: the batch is then passes * rows * ranks, which equals `batch` if that is divisible.
        """
        rows, ranks = checks.integer(rows, "rows", 1), checks.integer(ranks, "ranks", 1)
        return -(-self.batch(step) // (rows * ranks))

    def _wanted(self, step: int) -> float:
        return self.start * self.growth ** sum(_step(step) >= milestone for milestone in self.milestones)


def _step(step: int) -> float:
    return checks.number(step, "step", 0)


def _rate(lr: float) -> float:
    return checks.number(lr, "lr", 0)


def _milestones(milestones: Sequence[int]) -> list[float]:
    given = checks.items(milestones, "milestones", "numbers of steps")
    return [checks.number(milestone, f"milestones[{i}]") for i, milestone in enumerate(given)]
