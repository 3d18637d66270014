"""`pycollective simulate` from the command line."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pycollective.cli.main import app
from pycollective.cli.units import parse_duration, parse_rate

from .test_commands import USER_FILE


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *words])


def test_a_table_marks_the_fastest_of_each_size() -> None:
    done = run("ring", "halving_doubling", "--ranks", "4,7", "--sizes", "1K,1G")
    assert done.exit_code == 0, done.output
    assert done.stdout.count("*") == 5  # one per row, and the explanation
    lines = [line.split() for line in done.stdout.splitlines() if "iB" in line]
    assert [line[:2] for line in lines] == [["4", "1"], ["4", "1"], ["7", "1"], ["7", "1"]]
    assert " ".join(lines[0][3:]) == "30.1 us 10.2 us *"


def test_all_that_have_the_collective() -> None:
    rows = json.loads(run("--collective", "gather", "--ranks", "8", "--sizes", "64K", "--json", "-").stdout)["rows"]
    assert {"direct", "halving_doubling", "star", "tree"} <= {row["topology"] for row in rows}
    assert {row["root"] for row in rows} == {0}
    assert not {"ring", "wheel"} & {row["topology"] for row in rows}


def test_units_and_nodes_reach_the_network() -> None:
    words = """ring --ranks 4 --sizes 1M --latency 0.5ms --bandwidth 8Gbit/s --reduce 10GB/s
               --node 2 --node-latency 300ns --node-bandwidth 50GB/s --shared-port --json -"""
    document = json.loads(run(*words.split()).stdout)
    assert document["network"] == {
        "latency": 5e-4, "bandwidth": 1e9, "reduction": 1e10, "ranks_per_node": 2, "node_latency": 3e-7,
        "node_bandwidth": 5e10, "shared_port": True,
    }  # fmt: skip
    (row,) = document["rows"]
    m = 2**18
    assert row["time_us"] == pytest.approx(6 * (500 + m / 1e3) + 3 * m / 1e4)
    assert (row["bytes_sent"], row["bytes_between_nodes"]) == (24 * m, 12 * m)


def test_a_users_file(tmp_path: Path) -> None:
    mine, table = tmp_path / "simulated.py", tmp_path / "out.csv"
    mine.write_text(USER_FILE)
    words = ("--ranks", "5", "--sizes", "4:64:x4", "--csv", str(table))
    done = run(f"{mine}:chain", "chain(start=2)", *words)
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [row["topology"] for row in rows] == ["chain"] * 3 + ["chain(start=2)"] * 3
    assert {row["messages"] for row in rows} == {"8"}


@pytest.mark.parametrize("words", [("--ranks", "4", "--sizes", "1K:1M:x8"), ("--ranks", "2,4,8", "--sizes", "1K")])
def test_a_plot(tmp_path: Path, words: tuple[str, ...]) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "plot.svg"
    done = run("ring", "tree", *words, "--plot", str(out))
    assert done.exit_code == 0, done.output
    assert "<svg" in out.read_text()


def test_what_is_too_large_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from pycollective.cli import simulate as command
    from pycollective.schedule import simulate

    monkeypatch.setattr(command, "simulate_call", lambda *a, **how: simulate(*a, **how, limit=1000))
    done = run("ring", "star", "--ranks", "4,32", "--sizes", "1M")
    assert done.exit_code == 0, done.output
    assert "ring: " in done.stderr and "allreduce on 32 ranks is too large to simulate" in done.stderr
    assert done.stdout.splitlines()[-3].split()[:4] == ["32", "1", "MiB", "-"]
    assert run("ring", "--ranks", "32", "--sizes", "1M").exit_code == 2


def test_units() -> None:
    assert [parse_duration(text) for text in ("5us", "1.5 ms", "2s", "300ns", "7µs")] == [5e-6, 1.5e-3, 2, 3e-7, 7e-6]
    assert [parse_rate(text) for text in ("12.5GB/s", "100Gbit/s", "1 kB/s", "inf")] == [12.5e9, 12.5e9, 1e3, math.inf]
