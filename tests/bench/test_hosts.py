"""The benchmarks on ranks of several hosts: goals, the wire, and runs."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import pytest

from launch import on_two_host_names, run_command, run_module
from pycollective.bench import hosts
from pycollective.bench.hosts import HostsRow, Layout
from pycollective.bench.namespaces import AGENT, Hosts, why_not
from pycollective.bench.ranks.launch import find_launcher
from pycollective.bench.result import Row, decode, read_json
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
    found = {line.row: line.met for line in hosts.lines_of(rows)}
    assert found == {"2x4, 1 MiB, ring": False, "2x4, 1 MiB, star": None}


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
def test_a_run_across_hosts(tmp_path: Path) -> None:
    words = ["--quick", "--layouts", "2x2", "--sizes", "8,64K", "--no-gloo"]
    run_module("pycollective.bench.hosts", *words, cwd=tmp_path)
    result = decode((tmp_path / "hosts-speed.json").read_text(), hosts.HostsResult)
    found = {(one.layout, one.row.library, one.row.size, one.row.wrong) for one in result.rows}
    assert found == {("2x2", library, size, 0) for library in (OURS, "openmpi") for size in (8, 65536)}
    assert [line.row for line in result.lines] == ["2x2, 8 B", "2x2, 64 KiB"]
    assert "| 2x2, 8 B | Open MPI | >= 2.5x |" in (tmp_path / "hosts-speed.md").read_text()


@pytest.mark.mpi
def test_in_ranks_that_mpirun_has_started(tmp_path: Path) -> None:
    """Between hosts topologies and windows are compared as on one."""
    words = ["--quick", "--sizes", "64,64K", "--topology", "ring", "--topology", "tree", "--json", "a.json"]
    done = on_two_host_names([sys.executable, "-m", "pycollective.bench", *words, "--peers", "mpi"], tmp_path, ranks=2)
    assert done.returncode == 0, done.stdout + done.stderr
    _check_result(tmp_path / "a.json", {"openmpi"}, {"ring", "tree"}, (64, 65536), 2)


@pytest.mark.parametrize("peers", [(), pytest.param(("openmpi",), marks=pytest.mark.mpi)])
def test_on_given_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peers: tuple[str, ...]) -> None:
    """`-H` starts the ranks by `pycollective run`, or by the mpirun of the peer."""
    if reason := why_not():
        pytest.skip(reason)
    if peers and not find_launcher(*peers).program:
        pytest.skip("needs mpi4py and Open MPI's mpirun")
    monkeypatch.chdir(tmp_path)
    words = ["ring", "--quick", "--sizes", "4K", "--json", "a.json", "--peers", *(peers or ("none",))]
    with Hosts(2) as simulated:
        command = [sys.executable, "-m", "pycollective.bench", "-H", "host0:2,host1:1", "--rsh", AGENT, *words]
        run_command(*simulated.command("host0", command))
    _check_result(tmp_path / "a.json", set(peers), {"ring"}, (4096,), 3)


def _check_result(file: Path, peers: set[str], topologies: set[str], sizes: tuple[int, ...], ranks: int) -> None:
    rows = read_json(file.read_text()).rows
    ours = set(product(("pycollective",), topologies, ("windows", "plain"), sizes, (ranks,)))
    theirs = set(product(peers, ("",), ("plain",), sizes, (ranks,)))
    assert {(row.library, row.topology, row.path, row.size, row.ranks) for row in rows} == ours | theirs
    assert all(row.wrong == 0 for row in rows)
