"""Which cores the ranks of a host have: affinity, control groups of both versions, hardware threads."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pycollective.comm.host.cores import are_enough, cpu_quota, in_binding_order, ranges


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_max", ".max").replace("cfs", "cpu.cfs")).write_text(text)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({"": "max 100000"}, None),
        ({"job/step": "150000 100000"}, 1.5),
        ({"job": "200000 100000", "job/step": "max 100000"}, 2.0),
        ({"job": "100000 100000", "job/step": "400000 100000"}, 1.0),
        ({"": "300000 100000", "elsewhere": "1000 100000"}, 3.0),
        ({"job": "garbage"}, None),
    ],
)
def test_quota_of_version_2(tmp_path: Path, limits: dict[str, str], expected: float | None) -> None:
    """The limits of all groups from the root down to the process's own count; the smallest one holds."""
    for path, text in limits.items():
        write(tmp_path / "fs" / path, cpu_max=text)
    own = tmp_path / "cgroup"
    own.write_text("0::/job/step\n")
    assert cpu_quota(tmp_path / "fs", own) == expected


def test_quota_of_version_1(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("5:memory:/other\n2:cpuacct:/none\n1:cpu,cpuset:/job\n")
    write(tmp_path / "cpu", cfs_quota_us="-1", cfs_period_us="100000")
    assert cpu_quota(tmp_path, own) is None
    write(tmp_path / "cpu" / "job", cfs_quota_us="250000", cfs_period_us="100000")
    write(tmp_path / "cpu" / "other", cfs_quota_us="1000", cfs_period_us="100000")
    assert cpu_quota(tmp_path, own) == 2.5


def test_group_outside_of_the_container(tmp_path: Path) -> None:
    """The mount shows the process's own group as its root, and the path names the host's."""
    write(tmp_path / "fs", cpu_max="50000 100000")
    own = tmp_path / "cgroup"
    own.write_text("0::/../../kubepods/pod1\n")
    assert cpu_quota(tmp_path / "fs", own) == 0.5
    assert cpu_quota(tmp_path / "nothing", tmp_path / "none") is None


def masks(*numbers: set[int]) -> list[frozenset[int]]:
    return [frozenset(one) for one in numbers]


@given(st.lists(st.frozensets(st.integers(0, 5), max_size=4), max_size=6))
@example(masks({0}, {0}, {1, 2}, {1, 2, 3}))  # enough in total
@example(masks({0, 1}, {1, 2}, {2, 3}, {0}))  # all move up
@example(masks({1, 3}, {0, 2}, {0, 1}, {0, 2}))
@example(masks({2, 3, 4}, {0}, {0, 1}, {0, 1, 2}, {0, 1, 2}))
def test_every_rank_has_a_core_of_its_own(cores: list[frozenset[int]]) -> None:
    ways = permutations(range(6), len(cores))
    possible = any(all(core in mask for core, mask in zip(way, cores, strict=True)) for way in ways)
    assert are_enough(cores, None) == possible


def test_the_quota_limits_the_cores() -> None:
    assert are_enough(masks({0, 1}, {0, 1}), 2.0)
    assert not are_enough(masks({0, 1}, {0, 1}), 1.5)


@pytest.mark.parametrize("shared", [0, 512])
def test_many_ranks(shared: int) -> None:
    """Whether all masks are equal, or half of the ranks may use one half of the cores only."""
    everywhere = frozenset(range(1024))
    cores = [everywhere] * (1024 - shared) + [frozenset(range(512))] * shared
    assert are_enough(cores, None)
    assert not are_enough([*cores, everywhere], None)
    assert are_enough([frozenset({core}) for core in range(1024)], None)


@pytest.mark.parametrize(
    ("cores", "siblings", "expected"),
    [
        ({0, 1, 2, 3}, ["0,2", "1,3", "0,2", "1,3"], [0, 1, 2, 3]),
        ({0, 1, 2, 3, 4}, ["0-1", "0-1", "2-3", "2-3", "4"], [0, 2, 4, 1, 3]),
        ({1, 2, 3}, ["0-1", "0-1", "2-3", "2-3"], [1, 2, 3]),  # core 0 is not ours
        ({0, 1, 4, 5}, ["0-3", "0-3", "0-3", "0-3", "4-7", "4-7"], [0, 4, 1, 5]),
        ({5, 3}, [], [3, 5]),
    ],
)
def test_ranks_are_bound_to_physical_cores_first(
    cores: set[int], siblings: list[str], expected: list[int], tmp_path: Path
) -> None:
    for core, text in enumerate(siblings):
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(text + "\n")
    assert in_binding_order(cores, tmp_path) == expected


@pytest.mark.parametrize(("cores", "text"), [({8, 0, 1, 2}, "0-2,8"), ({3}, "3"), ({1, 3, 4}, "1,3-4"), (set(), "")])
def test_ranges(cores: set[int], text: str) -> None:
    assert ranges(cores) == text
