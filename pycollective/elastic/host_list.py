"""The hosts of an elastic job: how many workers each has, which ranks they get, and those on which workers fail."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pycollective.elastic.workers import Worker

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


def place(slots: Mapping[str, int], running: Mapping[str, int], most: int | None) -> dict[str, int]:
    """Host -> workers, at most `most` in all. Workers that run keep their places; the rest is filled host by host."""
    left = sum(slots.values()) if most is None else most
    counts = dict.fromkeys(slots, 0)
    for wanted in ({host: min(room, running.get(host, 0)) for host, room in slots.items()}, slots):
        for host, count in wanted.items():
            more = min(count - counts[host], left)
            counts[host] += more
            left -= more
    return {host: count for host, count in counts.items() if count}


def choose(workers: Sequence[Worker], counts: Mapping[str, int]) -> list[Worker]:
    """The workers that stay if so many may on each host: first those with the state, then by slot."""
    chosen = []
    for host, count in counts.items():
        here = [worker for worker in workers if worker.host == host]
        chosen += sorted(here, key=lambda worker: (not worker.synced, worker.rank < 0, worker.slot))[:count]
    return chosen


def by_rank(workers: Sequence[Worker]) -> list[Worker]:
    """The workers of a generation in the order of their new ranks.

    Ranks of a host are consecutive, in the order of its slots, so that local ranks do not change; hosts are in their
    old order, new ones last. Rank 0 must have the state, if any worker has: the first host is one whose first worker
    has it, or, if there is none, its workers with the state are first.
    """
    hosts: dict[str, list[Worker]] = {}
    for worker in sorted(workers, key=_seniority):
        hosts.setdefault(worker.host, []).append(worker)
    groups = [sorted(group, key=lambda worker: worker.slot) for group in hosts.values()]
    first = next((group for group in groups if group[0].synced), None)
    if first is None:
        first = groups[0]
        first.sort(key=lambda worker: (not worker.synced, worker.slot))
    return [*first, *(worker for group in groups if group is not first for worker in group)]


def _seniority(worker: Worker) -> tuple[bool, int, int]:
    """Workers with the state first, then by their old rank, then by age."""
    rank = worker.rank if worker.rank >= 0 else 1 << 30
    return not worker.synced, rank, worker.number
