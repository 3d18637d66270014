"""The cores that the ranks of a host may use: affinity masks and the control groups' CPU limits."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def usable_cores() -> frozenset[int]:
    """The numbers of the cores that this process may run on."""
    return frozenset(os.sched_getaffinity(0))


def cpu_quota(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """The smallest CPU limit of this process's control groups, in cores; None if unlimited.

    Args:
        groups: where the control groups are mounted (version 1 or 2).
        own: the file that names this process's groups.
    """
    limits = []
    for line in _read(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = groups / "cpu" if controllers else groups
        group = root / path.lstrip("/")
        # In a container the path may be that outside of it: then only the mounted root exists.
        for folder in (root, *(folder for folder in (group, *group.parents) if folder.is_relative_to(root))):
            limits.append(_limit(folder))
    return min((limit for limit in limits if limit is not None), default=None)


def are_enough(ranks: int, cores: Iterable[frozenset[int]], quota: float | None) -> bool:
    """Whether each of so many ranks on this host has a core of its own.

    Args:
        ranks: how many there are.
        cores: those that each rank may use.
        quota: the CPU limit, in cores; None if unlimited.
    """
    return ranks <= len(frozenset().union(*cores)) and (quota is None or ranks <= quota)


def _limit(folder: Path) -> float | None:
    """The limit of one control group."""
    words = _read(folder / "cpu.max").split()  # version 2
    if not words:
        words = [_read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()]
    if len(words) != 2 or not all(word.isdigit() for word in words):  # "max", "-1"
        return None
    return int(words[0]) / int(words[1])


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
