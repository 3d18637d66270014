"""The comparison of `mix`: what is measured, how ratios and goals are computed, and a run."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from msgspec.structs import replace as changed

from launch import run_module
from pycollective.bench.mix import MixResult, comparisons_of, groups_for, markdown
from pycollective.bench.peers.ceiling import CEILING
from pycollective.bench.ranks.launch import find_launcher
from pycollective.bench.result import Row, collect_provenance, decode, json_schema
from pycollective.bench.workload.plan import OURS

LARGE = 64 << 20
ROW = Row(
    "mix", OURS, "default", "windows", 2, LARGE, LARGE // 4, "float32", "ring", -1, False,
    10.0, 1.0, 1.0, 0, 0, 1, [10.0, 10.0, 40.0],
)  # fmt: skip
IDEAL = changed(ROW, library=CEILING, topology="", time_us=8.0, rounds_us=[8.0, 9.5, 32.0])
THEIRS = changed(ROW, library="openmpi", topology="", time_us=31.0, rounds_us=[31.0, 31.0, 80.0])


def test_each_size_has_the_peers_the_ceiling_and_both_memories() -> None:
    [small, large] = groups_for("exponential", [8, LARGE], 4, ["openmpi"])
    assert [(one.library, one.path) for one in large] == [
        ("openmpi", "plain"), (CEILING, "windows"), (OURS, "windows"), (OURS, "plain"),
    ]  # fmt: skip
    assert {one.case.op for one in small} == {"exponential"}
    assert (small[0].case.nbytes, large[0].case.nbytes) == (8, LARGE)


def test_ratios_and_goals() -> None:
    plain = changed(ROW, path="plain")
    found = comparisons_of([THEIRS, IDEAL, ROW, plain, changed(THEIRS, group=1)])
    assert [(one.path, one.against, one.ratio, one.goal) for one in found] == [
        ("windows", "openmpi", 3.1, 3.0),
        ("windows", CEILING, 0.8, 0.9),
        ("plain", "openmpi", 3.1, 3.0),
        ("plain", CEILING, 0.8, None),
    ]
    [one] = comparisons_of([changed(row, size=1024) for row in (THEIRS, ROW)])
    assert one.goal == 2.0
    text = markdown(found, collect_provenance({"openmpi": "Open MPI 5"}, {"2": "-"}, "openmpi", 0.0))
    assert "| ring, 2 | 64 MiB | windows | 10.00 | 31.00: 3.10x | 8.000: **0.80x** |" in text
    assert "| ring, 2 | 64 MiB | plain | 10.00 | 31.00: 3.10x | 8.000: 0.80x |" in text


@pytest.mark.mpi
def test_a_run(tmp_path: Path) -> None:
    if not find_launcher().program:
        pytest.skip("no mpirun")
    words = ["--sizes", "8,4K", "--ranks", "3", "--graph", "exponential", "--quick", "--out", "out"]
    done = run_module("pycollective.bench.mix", *words, cwd=tmp_path)
    text = (tmp_path / "out/mix.json").read_text()
    jsonschema.Draft202012Validator(json.loads(json_schema(MixResult))).validate(json.loads(text))
    result = decode(text, MixResult)
    assert {(one.size, one.path, one.against) for one in result.comparisons} == {
        (size, path, against) for size in (8, 4096) for path in ("windows", "plain") for against in ("openmpi", CEILING)
    }
    checked = {row.library: row.wrong for row in result.result.rows}
    assert checked == {"openmpi": 0, OURS: 0, CEILING: 0}
    assert (tmp_path / "out/mix.md").read_text() in done.stdout
