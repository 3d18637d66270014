"""The benchmark across simulated hosts: goals, the wire, and a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch import run_module
from pycollective.bench import hosts
from pycollective.bench.hosts import HostsRow, Layout
from pycollective.bench.ranks.namespaces import why_not
from pycollective.bench.result import Row, decode
from pycollective.bench.workload.plan import OURS


def _row(
    layout: Layout, size: int, library: str, rounds: list[float], bandwidth: str = "", topology: str = ""
) -> HostsRow:
    time = sorted(rounds)[len(rounds) // 2]
    row = Row("allreduce", library, topology, "plain", layout.ranks, size, size // 4, "float32", "sum", -1, False,
              time, 1.0, 1.0, 0, 0, 1, rounds)  # fmt: skip
    return HostsRow(str(layout), bandwidth, row)


@pytest.mark.parametrize(("layout", "size", "least"), [("2x1", 8, 1.15), ("2x4", 64 << 20, 2.4), ("4x1", 1 << 16, 1.7)])
def test_a_goal_belongs_to_a_layout_and_a_size(layout: str, size: int, least: float) -> None:
    for factor, met in ((1.01, True), (0.99, False)):
        ours = _row(Layout.parse(layout), size, OURS, [10.0, 20.0, 30.0], topology="default")
        theirs = _row(Layout.parse(layout), size, "openmpi", [x * least * factor for x in (10.0, 20.0, 30.0)])
        [line] = hosts.lines_of([theirs, ours])
        assert (line.met, line.against, line.goal) == (met, "Open MPI", f">= {least:g}x")


def test_a_ratio_pairs_the_rounds() -> None:
    """The second round was slow for both."""
    layout = Layout(2, 2)
    ours, theirs = ([10.0, 90.0, 10.0], [20.0, 180.0, 30.0])
    [line] = hosts.lines_of([_row(layout, 64, OURS, ours, topology="default"), _row(layout, 64, "openmpi", theirs)])
    assert (line.measured, line.met, line.goal) == ("2.00x", None, "")


def test_every_topology_but_star_has_a_goal() -> None:
    layout, peer = Layout(2, 4), _row(Layout(2, 4), 1 << 20, "openmpi", [10.0])
    rows = [peer, *(_row(layout, 1 << 20, OURS, [20.0], topology=name) for name in ("ring", "star"))]
    assert [(line.row, line.met) for line in hosts.lines_of(rows)] == [
        ("2x4, 1 MiB, ring", False),
        ("2x4, 1 MiB, star", None),
    ]


def test_the_wire_carries_what_must_cross() -> None:
    """2 hosts exchange the array once, 4 send 1.5 of it; 1448 of 1514 bytes of a frame are the array's."""
    two, four = (hosts.wire_seconds(Layout(count, 4), 16 << 20, "1gbit") for count in (2, 4))
    assert two == pytest.approx(0.14034, rel=1e-4)
    assert (four / two, hosts.wire_seconds(Layout(2, 1), 16 << 20, "500mbit") / two) == pytest.approx((1.5, 2))
    [line, _] = hosts.lines_of(
        [_row(Layout(2, 4), 16 << 20, OURS, [two / 0.98 * 1e6], "1gbit", "default"),
         _row(Layout(2, 4), 16 << 20, "openmpi", [1e6], "1gbit")]
    )  # fmt: skip
    assert (line.against, line.measured, line.met) == ("the wire", "98%", True)


@pytest.mark.parametrize("text", ["2", "1x4", "2x0", "2x", "ax2"])
def test_a_wrong_layout(text: str) -> None:
    with pytest.raises(ValueError, match="HOSTSxRANKS"):
        Layout.parse(text)


@pytest.mark.mpi
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_the_command(tmp_path: Path) -> None:
    words = ["--quick", "--layouts", "2x2", "--sizes", "8,64K", "--no-gloo"]
    run_module("pycollective.bench.hosts", *words, cwd=tmp_path)
    result = decode((tmp_path / "hosts-speed.json").read_text(), hosts.HostsResult)
    found = {(one.layout, one.row.library, one.row.size, one.row.wrong) for one in result.rows}
    assert found == {("2x2", library, size, 0) for library in (OURS, "openmpi") for size in (8, 65536)}
    assert [line.row for line in result.lines] == ["2x2, 8 B", "2x2, 64 KiB"]
    assert "| 2x2, 8 B | Open MPI | >= 2.5x |" in (tmp_path / "hosts-speed.md").read_text()
