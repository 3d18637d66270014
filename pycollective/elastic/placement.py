"""How many workers each host has, and which ranks they get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pycollective.elastic.workers import Worker


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
