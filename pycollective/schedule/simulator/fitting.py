"""Fitting the simulator's network to measured times: alpha, beta and gamma by least squares."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from pycollective.schedule.simulator.network import Network
from pycollective.schedule.simulator.simulator import simulate

_ROUNDS = 30
_STEP = 1e-4
_START = (1e-6, 1e-10, 1e-11)
"""alpha in seconds, beta and gamma in seconds per byte: typical values for a host's shared memory."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measured call: `seconds` for `nbytes` (of the larger buffer) on this many ranks; root None: none."""

    topology: str
    collective: str
    ranks: int
    nbytes: int
    root: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A network, and how well it explains the measurements.

    Attributes:
        network: latency is alpha, bandwidth 1/beta and reduction 1/gamma; math.inf if these are 0.
        measurements: the measurements.
        predicted: the simulated seconds of each.
    """

    network: Network
    measurements: tuple[Measurement, ...]
    predicted: tuple[float, ...]

    @property
    def errors(self) -> list[float]:
        """Relative error of each measurement, (predicted - measured) / measured."""
        pairs = zip(self.predicted, self.measurements, strict=True)
        return [predicted / one.seconds - 1 for predicted, one in pairs]

    @property
    def rms_error(self) -> float:
        """Root mean square of the relative errors, which was minimized."""
        return math.sqrt(sum(error**2 for error in self.errors) / len(self.errors))

    @property
    def median_error(self) -> float:
        """Median of the absolute relative errors."""
        return median(map(abs, self.errors))

    @property
    def largest_error(self) -> float:
        """The largest absolute relative error."""
        return max(map(abs, self.errors))


def fit(measurements: Sequence[Measurement], tile: int | None = None) -> Fit:
    """The network that minimizes the relative error between simulation and measurements.

    A simulated time is the cost of its critical path, linear in alpha, beta and gamma while the path stays the same:
    so a linear problem is solved iteratively, each time with the paths of the last solution.

    Args:
        measurements: at least three, of registered topologies.
        tile: as for `simulate`.

    Raises:
        ValueError: fewer than three measurements, or a time that is not above 0.
        TopologyError, ProgramError: see `simulate`.
    """
    if len(measurements) < 3:
        raise ValueError(f"{len(measurements)} measurements: three unknowns need at least as many")
    if not all(one.seconds > 0 for one in measurements):
        raise ValueError("a measured time is not above 0")
    # grouped by program, which the simulator caches
    rows = sorted(measurements, key=lambda one: (one.topology, one.collective, one.ranks, one.root or 0, one.nbytes))
    solution: tuple[float, ...] = _START
    best: Fit | None = None
    for _ in range(_ROUNDS):
        found = Fit(_network(solution), tuple(rows), tuple(_seconds(one, solution, tile) for one in rows))
        if best is not None and abs(found.rms_error - best.rms_error) < 1e-9:
            break
        if best is None or found.rms_error < best.rms_error:
            best = found
        solution = _solve([_shares(one, solution, now, tile) for one, now in zip(rows, found.predicted, strict=True)])
    assert best is not None
    return best


def _network(solution: tuple[float, ...]) -> Network:
    alpha, beta, gamma = solution
    return Network(alpha, 1 / beta if beta else math.inf, 1 / gamma if gamma else math.inf)


def _seconds(one: Measurement, solution: tuple[float, ...], tile: int | None) -> float:
    network = _network(solution)
    return simulate(one.topology, one.collective, one.ranks, one.nbytes, network, root=one.root, tile=tile).seconds


def _shares(one: Measurement, solution: tuple[float, ...], now: float, tile: int | None) -> list[float]:
    """The change of the time per unit of alpha, beta and gamma, in measured times."""
    shares = []
    for number, value in enumerate(solution):
        step = _STEP * (value or _START[number])
        moved = (*solution[:number], value + step, *solution[number + 1 :])
        shares.append((_seconds(one, moved, tile) - now) / step / one.seconds)
    return shares


def _solve(shares: list[list[float]]) -> tuple[float, ...]:
    """The least squares solution of shares @ x = 1 with no x below 0: the best of all choices of zeros."""
    import numpy as np

    matrix: Any = np.asarray(shares)
    scale = np.abs(matrix).max(axis=0)
    scale[scale == 0] = 1.0
    ones = np.ones(len(shares))
    best, least = np.zeros(3), math.inf
    for chosen in itertools.product((False, True), repeat=3):
        columns = [number for number in range(3) if chosen[number]]
        if not columns:
            continue
        part, *_ = np.linalg.lstsq(matrix[:, columns] / scale[columns], ones, rcond=None)
        error = float(((matrix[:, columns] / scale[columns] @ part - ones) ** 2).sum())
        if part.min() >= 0 and error < least:
            best, least = np.zeros(3), error
            best[columns] = part / scale[columns]
    return tuple(map(float, best))
