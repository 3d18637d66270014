"""The hosts of an elastic job in the order in which they are filled, and those on which workers fail."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

MOST_FAILURES, WITHIN = 3, 3600.0
"""A host is excluded after so many generations with a failed worker within so many seconds."""


@dataclass
class _Record:
    """What is known of a host on which workers have failed."""

    failed_in: dict[int, float]  # generation -> time
    exclusions: int = 0
    until: float = 0.0


class HostList:
    """The discovered hosts; those excluded get no new workers, but keep those that run.

    Args:
        cooldown: least and most seconds for which a host is excluded: twice as long each time, and randomized, as in
            Horovod; None: for good.
    """

    def __init__(self, cooldown: tuple[float, float] | None = None) -> None:
        self._cooldown = cooldown
        self._slots: dict[str, int] = {}
        self._records: dict[str, _Record] = {}

    def update(self, found: Mapping[str, int]) -> None:
        """Newly discovered hosts follow the ones known already."""
        known = {host: found[host] for host in self._slots if host in found}
        self._slots = known | dict(found)

    def slots(self, running: Mapping[str, int], now: float) -> dict[str, int]:
        """Host -> slots to be used, in order; `running`: host -> workers that run there."""
        usable = {
            host: min(running.get(host, 0), slots) if self.is_excluded(host, now) else slots
            for host, slots in self._slots.items()
        }
        return {host: slots for host, slots in usable.items() if slots}

    def is_excluded(self, host: str, now: float) -> bool:
        """Return whether no worker may be started there."""
        return host in self._records and now < self._records[host].until

    def is_hopeless(self) -> bool:
        """Return whether there are hosts, and all of them are excluded for good."""
        return bool(self._slots) and all(self.is_excluded(host, math.nextafter(math.inf, 0)) for host in self._slots)

    def failed(self, host: str, generation: int, at_once: bool, now: float) -> bool:
        """A worker of this generation has failed; `at_once`: before it has asked for a rank, which excludes the host.

        Returns whether that has excluded it now.
        """
        record = self._records.setdefault(host, _Record({}))
        record.failed_in[generation] = now
        record.failed_in = {number: when for number, when in record.failed_in.items() if when > now - WITHIN}
        if self.is_excluded(host, now) or not (at_once or len(record.failed_in) >= MOST_FAILURES):
            return False
        record.failed_in.clear()
        record.until = now + self._seconds(record.exclusions)
        record.exclusions += 1
        return True

    def _seconds(self, earlier: int) -> float:
        if self._cooldown is None:
            return math.inf
        least, most = self._cooldown
        return min(most, least * (2.0 ** min(earlier, 60)) + random.uniform(0.0, least))
