"""The cores that the ranks of a host may use: affinity masks, the control groups' CPU limits, hardware threads."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path


def usable_cores() -> frozenset[int]:
    """The numbers of the cores that this process may run on."""
    return frozenset(os.sched_getaffinity(0))


def cpu_model() -> str:
    """The processor's name as the kernel gives it."""
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def ranges(cores: Iterable[int]) -> str:
    """The numbers in the kernel's notation: "0-3,8" for 0, 1, 2, 3, 8."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def in_binding_order(cores: Collection[int], cpus: Path = Path("/sys/devices/system/cpu")) -> list[int]:
    """The cores in the order in which ranks are bound to them: one of each physical core, then their siblings.

    Args:
        cores: as numbered by the kernel, which numbers hardware threads.
        cpus: the folder in which the kernel gives the siblings of each; unknown ones count as physical cores.
    """

    def earlier_siblings(core: int) -> int:
        siblings = _numbers(_read(cpus / f"cpu{core}" / "topology" / "thread_siblings_list"))
        return sum(other < core for other in siblings.intersection(cores))

    return sorted(cores, key=lambda core: (earlier_siblings(core), core))


def cpu_quota(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """The smallest CPU limit of this process's control groups, in cores; None if unlimited.

    Args:
        groups: where they are mounted (version 1 or 2). own: the file that names this process's.
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


def computing_threads() -> int:
    """How many threads of this process compute at the same time, as far as is known: torch's, or OMP_NUM_THREADS."""
    torch = sys.modules.get("torch")
    if hasattr(torch, "get_num_threads"):
        return int(torch.get_num_threads())  # type: ignore[union-attr]
    outermost = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(outermost) if outermost.isdecimal() else 1


def have_spare(ranks: int, threads: int) -> bool:
    """Return whether each of the host's `ranks` can have a core more than its `threads` that compute need."""
    quota = cpu_quota()
    cores = len(usable_cores())
    return (cores if quota is None else min(cores, quota)) >= ranks * (threads + 1)


def are_enough(cores: Sequence[frozenset[int]], quota: float | None) -> bool:
    """Return whether every rank of this host can have a core of its own, of those that it may use.

    `quota`: the CPU limit, in cores; None if unlimited.
    """
    return (quota is None or len(cores) <= quota) and _have_matching(cores)


def _have_matching(cores: Sequence[frozenset[int]]) -> bool:
    """Return whether the ranks can be given distinct cores: bipartite matching by augmenting paths."""
    free = set(frozenset().union(*cores))
    if len(cores) > len(free):
        return False
    if len(set(cores)) <= 1:
        return True
    cores = sorted(cores, key=len)  # ranks with few cores first: then few have to move
    core_of: dict[int, int] = {}
    rank_of: dict[int, int] = {}
    for newcomer in range(len(cores)):
        core, claims = _search(newcomer, cores, free, rank_of)
        if core is None:
            return False
        free.remove(core)
        while core is not None:  # every rank on the path moves to the core that it claims
            rank = rank_of[core] = claims[core]
            core_of[rank], core = core, core_of.get(rank)
    return True


def _search(
    newcomer: int, cores: Sequence[frozenset[int]], free: set[int], rank_of: Mapping[int, int]
) -> tuple[int | None, dict[int, int]]:
    """A free core, or None, that lets the newcomer in; and for each core on the way the rank that moves to it."""
    claims: dict[int, int] = {}
    seekers = [newcomer]
    for seeker in seekers:  # grows by the ranks whose cores are claimed
        if found := cores[seeker] & free:
            core = min(found)
            return core, claims | {core: seeker}
        for core in cores[seeker] - claims.keys():
            claims[core] = seeker
            seekers.append(rank_of[core])
    return None, claims


def _numbers(text: str) -> set[int]:
    """Inverse of ranges(); empty for an empty text."""
    runs = [run.split("-") for run in text.strip().split(",") if run]
    return {number for run in runs for number in range(int(run[0]), int(run[-1]) + 1)}


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
