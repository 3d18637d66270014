"""The statistics of a comparison: the order of a round, and ratios of times measured in the same round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["Ratio", "paired_ratio", "rotation", "rounded"]


@dataclass(frozen=True)
class Ratio:
    """How many times faster one candidate is than another: the median, and the middle half of the rounds."""

    median: float
    low: float
    high: float
    rounds: int

    def figures(self) -> dict[str, float]:
        """Figures by name, with four digits."""
        return {"low": rounded(self.low), "median": rounded(self.median), "high": rounded(self.high)}


def rounded(value: float, digits: int = 4) -> float:
    """The value with so many significant digits."""
    return float(f"{value:.{digits}g}")


def rotation(count: int, round_index: int) -> list[int]:
    """The order of a round: 0..count-1, rotated by one each time, so that no candidate is always first."""
    return [(round_index + place) % count for place in range(count)]


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Median of ``theirs[i] / ours[i]``: above 1 if ours is faster.

    The pairs are times of the same round, taken shortly after each other, so a temporary slowdown of the machine
    affects both and not their ratio.  ValueError if the rounds differ or there are none.
    """
    if not ours or len(ours) != len(theirs):
        raise ValueError(f"paired ratios need the same rounds of both, not {len(ours)} and {len(theirs)}")
    ratios = sorted(b / a for a, b in zip(ours, theirs, strict=True))
    last = len(ratios) - 1
    return Ratio(median(ratios), ratios[last // 4], ratios[last - last // 4], len(ratios))
