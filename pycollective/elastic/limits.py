"""How many workers an elastic job may have, and how often and how long it may be disturbed."""

from __future__ import annotations

from dataclasses import dataclass

from pycollective import settings

_LONGEST = 3600.0
"""Seconds; the limit of Horovod's --blacklist-cooldown-range."""


@dataclass(frozen=True)
class Limits:
    """
    Attributes:
        start: workers needed to begin.
        least: workers needed to continue; None: as many as to begin.
        most: workers at most; None: as many as the hosts have slots.
        resets: how many generations may follow the first; None: any number.
        cooldown: least and most seconds for which a host on which workers fail is excluded; None: for good.
        timeout: seconds that the job waits for hosts, or for workers to ask for their ranks; None:
            HOROVOD_ELASTIC_TIMEOUT.
        replace: whether workers that fail are replaced; False: the job fails with the first one.

    Raises:
        ValueError: not 1 <= least <= start <= most, or another value that cannot be.
    """

    start: int
    least: int | None = None
    most: int | None = None
    resets: int | None = None
    cooldown: tuple[float, float] | None = None
    timeout: float | None = None
    replace: bool = True

    def __post_init__(self) -> None:
        most = self.start if self.most is None else self.most
        if not 1 <= self.needed <= self.start <= most:
            raise ValueError(
                f"the least number of workers, {self.needed}, the number to begin with, {self.start}, and the most, "
                f"{most}: each must be at most the next, and at least 1"
            )
        if self.resets is not None and self.resets < 0:
            raise ValueError(f"a reset limit of {self.resets} is negative")
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"an elastic timeout of {self.timeout} seconds is not positive")
        if self.cooldown is not None and not 0 < self.cooldown[0] <= self.cooldown[1] <= _LONGEST:
            low, high = self.cooldown
            raise ValueError(
                f"a cool-down of {low:g} to {high:g} seconds: must be positive, in this order, at most {_LONGEST:g}"
            )

    @property
    def needed(self) -> int:
        """Workers needed to continue."""
        return self.start if self.least is None else self.least

    @property
    def seconds(self) -> float:
        """The timeout in force.

        Raises:
            ValueError: HOROVOD_ELASTIC_TIMEOUT is not a positive number.
        """
        return float(settings.read("HOROVOD_ELASTIC_TIMEOUT")) if self.timeout is None else self.timeout
