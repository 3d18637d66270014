"""`pycollective draw --mix`: graphs of neighbours as data and as pictures."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pycollective import graphs
from pycollective.cli.main import app


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["draw", *words])


def drawn(*words: str) -> list[dict]:
    done = run(*words, "--json", "-")
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    assert content["schema"] == "pycollective-graph/1"
    return content["rows"]


def test_the_data_are_the_weights_of_all_ranks_and_steps() -> None:
    (row,) = drawn("--mix", "one_peer", "--ranks", "4", "--steps", "3")
    assert row["graph"] == "one_peer" and row["ranks"] == 4 and row["spectral_gap"] == 1
    found = {(w["step"], w["rank"], w["source"]): w["weight"] for w in row["weights"]}
    assert found == {
        (step, rank, source): weight
        for step in range(3)
        for rank in range(4)
        for source, weight in graphs.one_peer(rank, 4, step).items()
    }


def test_parameters_of_a_graph_are_understood() -> None:
    (row,) = drawn("--mix", "random_regular(degree=3, seed=5)", "--ranks", "8")
    assert row["graph"] == "random_regular(degree=3, seed=5)"
    assert [sum(w["rank"] == rank for w in row["weights"]) for rank in range(8)] == [4] * 8  # the rank's own among them
    other = drawn("--mix", "random_regular(degree=3, seed=6)", "--ranks", "8")[0]
    assert other["weights"] != row["weights"]


def test_each_graph_is_drawn_for_each_number_of_ranks() -> None:
    rows = drawn("--mix", "ring", "--mix", "star", "--ranks", "4,8")
    assert [(row["graph"], row["ranks"]) for row in rows] == [("ring", 4), ("ring", 8), ("star", 4), ("star", 8)]
    assert rows[1]["spectral_gap"] == pytest.approx(1 - (1 + math.sqrt(2)) / 3)


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run("--mix", "random_pairs", "--ranks", "5", "--steps", "4", "--plot", str(tmp_path / "pairs.svg"))
    assert done.exit_code == 0 and str(tmp_path / "pairs.svg") in done.stdout
    text = (tmp_path / "pairs.svg").read_text()
    assert text.startswith("<?xml") and text.count("<path") > 20
    done = run("--mix", "ring", "--mix", "star", "--ranks", "3", "--plot", str(tmp_path / "two.png"))
    assert done.exit_code == 0 and len(list(tmp_path.glob("two*.png"))) == 2
