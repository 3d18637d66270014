"""The table of all calls: what is measured for it, how cells are computed, and a run."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from msgspec.structs import replace as changed

from launch import run_module
from pycollective.bench.calls import CallsResult, cells_of, groups_for, lines_of, markdown
from pycollective.bench.goals import call_goal
from pycollective.bench.ranks.launch import find_launcher
from pycollective.bench.result import Row, collect_provenance, decode, json_schema
from pycollective.bench.workload.cases import MEASURED
from pycollective.bench.workload.plan import OURS

ROW = Row(
    "allgather", OURS, "default", "plain", 4, 16, 1, "float32", "none", -1, False,
    10.0, 1.0, 1.0, 0, 0, 1, [10.0, 10.0, 40.0], "numpy", 50.0,
)  # fmt: skip
THEIRS = changed(ROW, library="impi", topology="", time_us=11.0, rounds_us=[11.0, 11.0, 80.0], p99_us=None)


def test_every_call_is_compared_at_every_size() -> None:
    groups = groups_for(tuple(MEASURED), [8, 65536], 4, ("openmpi", "gloo"), ("numpy", "torch"))
    measured = {(group[0].case.collective, group[0].case.nbytes) for group in groups}
    assert {name for name, _ in measured} == set(MEASURED)
    assert len(measured) == len(groups) == 2 * len(MEASURED) - 1  # the barrier has no size
    assert ("allgather", 16) in measured  # an element of each of 4 ranks
    for group in groups:
        kinds = ["numpy"] if group[0].case.collective == "barrier" else ["numpy", "torch"]
        assert [one.library for one in group] == ["openmpi", "gloo"] + [OURS] * len(kinds)
        assert [one.arrays for one in group if one.library == OURS] == kinds
        assert {one.path for one in group} == {"plain"}


def test_a_cell_is_the_median_of_the_rounds_ratios() -> None:
    [cell] = cells_of([THEIRS, ROW, changed(THEIRS, group=1)], [8, 1024])
    assert (cell.ratio, cell.goal, cell.met, cell.column, cell.size) == (1.1, 1.2, False, 8, 16)
    assert (cell.ours_us, cell.theirs_us, cell.ours_p99_us, cell.theirs_p99_us) == (10.0, 11.0, 50.0, None)
    assert [call_goal(size) for size in (0, 1024, 65536)] == [1.2, 1.2, 1.5]
    [beside] = cells_of([THEIRS, ROW], [8], neighbours=1)
    assert (beside.ratio, beside.goal, beside.met) == (1.1, 1.0, True)  # ahead


def test_allreduce_is_compared_with_the_better_of_intel_mpi_and_oneccl() -> None:
    ours = changed(ROW, collective="allreduce", ranks=2, size=8, count=2, op="sum")
    intel = changed(ours, library="impi", topology="", time_us=30.0, rounds_us=[30.0, 30.0, 80.0])
    oneccl = changed(intel, library="oneccl", time_us=19.0, rounds_us=[19.0, 19.0, 19.0])
    elsewhere = [changed(row, group=1, time_us=5.0, rounds_us=[5.0] * 5) for row in (ours, intel)]
    tensors = changed(ours, arrays="torch", time_us=1.0, rounds_us=[1.0] * 3)
    [line] = lines_of([intel, oneccl, ours, tensors, *elsewhere])
    assert (line.row, line.goal, line.measured, line.met) == ("allreduce on plain arrays, 8 B", ">= 2x", "1.90x", False)
    assert line.worst.endswith("10 us against 19 us of oneCCL")
    assert lines_of([intel, ours, *elsewhere]) == []  # one of them alone is not the better of both
    text = markdown([], collect_provenance({}, {}, "impi", 0.0), lines=[line])
    assert "| allreduce on plain arrays, 8 B | the better of Intel MPI and oneCCL | >= 2x | 1.90x | **no** |" in text


def test_markdown() -> None:
    barrier = changed(ROW, collective="barrier", size=0, count=0, group=1)
    rows = [THEIRS, ROW, barrier, changed(barrier, library="impi", rounds_us=[20.0, 20.0, 20.0])]
    rows += [changed(row, collective="gather", group=2, p99_us=p99) for row, p99 in ((ROW, 20.0), (THEIRS, 30.0))]
    text = markdown(cells_of(rows, [8]), collect_provenance({"impi": "Intel MPI 2021"}, {"4": "-"}, "impi", 0.0), 2)
    assert "4 ranks, beside 2 busy processes, ours / Intel MPI, microseconds: p99:" in text
    assert "| | 8 B |" in text
    assert "| allgather | 10.00 / 11.00: **1.10x** |" in text
    assert "| barrier | 10.00 / 10.00: 2.00x |" in text
    assert "| allgather | 50.00 / - |" in text
    assert "| gather | 20.00 / 30.00: 1.50x |" in text
    assert "Bold: below the goal of 1x." in text
    assert "Intel MPI 2021" in text and "yield" not in text


@pytest.mark.mpi
def test_a_run(tmp_path: Path) -> None:
    if not find_launcher().program:
        pytest.skip("no mpirun")
    words = ["--collective", "reduce_scatter,barrier", "--sizes", "8,4K", "--ranks", "2", "--peers", "mpi", "--quick"]
    done = run_module("pycollective.bench.calls", *words, "--out", "out", cwd=tmp_path)
    text = (tmp_path / "out/calls.json").read_text()
    jsonschema.Draft202012Validator(json.loads(json_schema(CallsResult))).validate(json.loads(text))
    result = decode(text, CallsResult)
    assert [(cell.collective, cell.column) for cell in result.cells] == [
        ("reduce_scatter", 8), ("reduce_scatter", 4096), ("barrier", 0),
    ]  # fmt: skip
    assert all(row.wrong == 0 for row in result.result.rows)
    assert (tmp_path / "out/calls.md").read_text() in done.stdout
