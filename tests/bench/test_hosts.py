"""The benchmark on ranks of several hosts."""

import sys
from pathlib import Path

import pytest

from launch import on_two_host_names
from pycollective.bench.result import read_json


@pytest.mark.mpi
def test_comparison_between_hosts(tmp_path: Path) -> None:
    """No topologies or windows: one row for pycollective, one for MPI, and a note."""
    words = ["--quick", "--sizes", "64,64K", "--topology", "ring", "--topology", "tree", "--json", "a.json"]
    done = on_two_host_names([sys.executable, "-m", "pycollective.bench", *words, "--peers", "mpi"], tmp_path, ranks=2)
    assert done.returncode == 0, done.stdout + done.stderr
    result = read_json((tmp_path / "a.json").read_text())
    measured = {(row.library == "pycollective", row.topology, row.path, row.size) for row in result.rows}
    assert measured == {(ours, "default" * ours, "plain", size) for ours in (True, False) for size in (64, 65536)}
    assert all(row.wrong == 0 for row in result.rows)
    assert any("2 hosts" in note for note in result.notes)
