"""The statistics of a comparison: the order of a round, and ratios of times measured in the same round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["Ratio", "balanced_order", "paired_ratio", "rounded"]


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


def balanced_order(count: int, round_index: int) -> list[int]:
    """The order of a round: in 2 * count rounds each of 0..count-1 follows each other one twice, and is first twice.

    Otherwise one would always find the caches as the same other one leaves them.  E. J. Williams, "Experimental designs
    balanced for the estimation of residual effects of treatments", Australian Journal of Scientific Research A 2, 1949.
    """
    steps = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(count)]
    line = [(round_index // 2 + step) % count for step in steps]
    return line[::-1] if round_index % 2 else line


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
