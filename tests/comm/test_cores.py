"""Which cores the ranks of a host have: affinity, control groups of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from pycollective.comm.host.cores import are_enough, cpu_quota


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


def test_are_enough() -> None:
    bound = [frozenset({0}), frozenset({1}), frozenset({1})]
    assert are_enough(2, bound[:2], None)
    assert not are_enough(3, bound, None), "two ranks share core 1"
    assert are_enough(2, [frozenset({0, 1})] * 2, 2.0)
    assert not are_enough(2, [frozenset({0, 1})] * 2, 1.5)
    assert not are_enough(1, [], None)
