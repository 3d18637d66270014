"""The benchmark on ranks of several hosts."""

import sys
from itertools import product
from pathlib import Path

import pytest

from launch import on_two_host_names, run_command
from pycollective.bench.ranks.launch import find_launcher
from pycollective.bench.ranks.namespaces import AGENT, Hosts, why_not
from pycollective.bench.result import read_json


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
    with Hosts(2) as hosts:
        command = [sys.executable, "-m", "pycollective.bench", "-H", "host0:2,host1:1", "--rsh", AGENT, *words]
        run_command(*hosts.command("host0", command))
    _check_result(tmp_path / "a.json", set(peers), {"ring"}, (4096,), 3)


def _check_result(file: Path, peers: set[str], topologies: set[str], sizes: tuple[int, ...], ranks: int) -> None:
    rows = read_json(file.read_text()).rows
    ours = set(product(("pycollective",), topologies, ("windows", "plain"), sizes, (ranks,)))
    theirs = set(product(peers, ("",), ("plain",), sizes, (ranks,)))
    assert {(row.library, row.topology, row.path, row.size, row.ranks) for row in rows} == ours | theirs
    assert all(row.wrong == 0 for row in rows)
