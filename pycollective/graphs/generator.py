"""SplitMix64: a generator of random numbers in a few lines, so that every rank and platform draws the same ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

_Item = TypeVar("_Item")
_MASK = (1 << 64) - 1
_STRIDE = 0x9E3779B97F4A7C15


class SplitMix64:
    """Pseudo-random integers, determined by the seeds alone.

    Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014). Python's own `random`
    documents no such promise for `shuffle`, and NumPy's generators none across versions.
    """

    def __init__(self, *seeds: int) -> None:
        """Args: seeds: integers; each combination has its own sequence."""
        self._state = 0
        for seed in seeds:
            self._state = self.draw() ^ (seed & _MASK)

    def draw(self) -> int:
        """An integer from 0 to 2^64 - 1."""
        self._state = (self._state + _STRIDE) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, bound: int) -> int:
        """An integer from 0 to bound - 1; for bounds below 2^32 their probabilities differ by less than 2^-32."""
        return self.draw() * bound >> 64

    def shuffled(self, items: Iterable[_Item]) -> list[_Item]:
        """The items in random order: the shuffle of Fisher and Yates."""
        found = list(items)
        for last in range(len(found) - 1, 0, -1):
            chosen = self.below(last + 1)
            found[last], found[chosen] = found[chosen], found[last]
        return found
