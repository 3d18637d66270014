"""The engine's benchmark: the tensors, the rows, and a run from the command line."""

import importlib.util
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace as changed

from launch import run_module
from pycollective.bench.engine.groups import GROUPS
from pycollective.bench.engine.result import EngineResult, EngineRow
from pycollective.bench.engine.run import line_of
from pycollective.bench.engine.shapes import ddp_buckets, resnet50
from pycollective.bench.engine.tensors import count_wrong, fill, separate
from pycollective.bench.goals import ENGINE, LAYERS, Added, Limit, Overhead, Speedup
from pycollective.bench.ranks.launch import find_launcher
from pycollective.bench.result import decode, to_json

ROW = EngineRow("small", "engine", "pycollective", 2, 161, 164864, 10.0, 0, 1, [10.0, 10.0, 40.0])
GOAL = Speedup("a row", "small", "engine", "Gloo, one by one", 10)
HAS_TORCH = importlib.util.find_spec("torch") is not None


def test_resnet50_is_the_standard_one() -> None:
    shapes = resnet50()
    assert len(shapes) == 161
    assert sum(map(prod, shapes)) == 25_557_032
    assert shapes[:2] == [(64, 3, 7, 7), (64,)]
    assert shapes.count((2048, 512, 1, 1)) == 3
    assert shapes[-2:] == [(1000, 2048), (1000,)]


def test_buckets_hold_every_tensor_once_from_the_last_to_the_first() -> None:
    shapes = resnet50()
    buckets = ddp_buckets(shapes)
    assert [index for bucket in buckets for index in bucket] == list(reversed(range(161)))
    sizes = [sum(4 * prod(shapes[index]) for index in bucket) for bucket in buckets]
    assert sizes[0] >= 1 << 20
    assert all(size >= 25 << 20 for size in sizes[1:-1])
    assert ddp_buckets([(1 << 18,)]) == [[0]]  # no empty bucket after one that is exactly full


@pytest.mark.torch
@pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
def test_buckets_are_those_of_torch() -> None:
    import torch
    import torch.distributed as dist

    shapes = resnet50()
    order = list(reversed(range(161)))
    tensors = [torch.empty(shapes[index], device="meta") for index in order]
    found, _ = dist._compute_bucket_assignment_by_size(tensors, [1 << 20, 25 << 20])
    assert [[order[position] for position in bucket] for bucket in found] == ddp_buckets(shapes)


def test_a_wrong_sum_is_seen() -> None:
    ranks = [separate([(5000,), (3, 7)]) for _ in range(3)]
    for rank, arrays in enumerate(ranks):
        fill(arrays, rank)
    sums = [sum(parts) for parts in zip(*ranks, strict=True)]
    assert count_wrong(sums, 3) == 0
    assert count_wrong(sums, 2) > 4900
    assert count_wrong([np.roll(sums[0], 128), sums[1]], 3) > 4900
    sums[1][2, 5] += 1
    assert count_wrong(sums, 3) == 1


def test_the_issue_s_rows_are_all_there() -> None:
    ratios = [(goal.group, goal.ours, goal.bound) for goal in ENGINE if isinstance(goal, Speedup)]
    assert ("resnet50", "grouped_allreduce", 5) in ratios
    assert ("resnet50", "engine, views", 1.8) in ratios
    assert ("16 MiB", "engine", 2.33) in ratios
    assert ("training", "DistributedOptimizer", 1) in ratios
    assert ("small", "grouped_allreduce", 10) in ratios
    limits = {(goal.group, goal.ours): goal.bound for goal in ENGINE if isinstance(goal, Limit)}
    assert limits["8 bytes", "engine"] == 100e-6
    assert limits["16 MiB", "engine"] == 3e-3


def test_the_layers_rows_are_all_there() -> None:
    overheads = {goal.ours: (goal.theirs, goal.bound) for goal in LAYERS if isinstance(goal, Overhead)}
    assert overheads["barrier"] == ("allreduce", 1.5)
    assert overheads["iallreduce and wait"] == ("allreduce", 4)
    assert overheads["engine, submit and wait"] == overheads["engine, run"] == ("allreduce", 5)
    assert overheads["hvd.allreduce"] == ("engine, run", 2)
    assert overheads["dist.all_reduce"] == ("idle group", 2)
    assert overheads["dist.all_reduce, later"] == ("idle group, later", 3)
    ratios = {(goal.group, goal.ours, goal.theirs): goal.bound for goal in LAYERS if isinstance(goal, Speedup)}
    assert ratios["messages", "send and recv", "Gloo"] == 5
    assert ratios["small", "grouped_allreduce", "Gloo, coalesced"] == 10
    assert ratios["training", "DistributedOptimizer", "DDP on Gloo"] == 1.3
    assert ratios["resnet50", "grouped_allreduce", "Gloo, DDP's buckets"] == 5
    [tensor] = [goal for goal in LAYERS if isinstance(goal, Added)]
    assert (tensor.ours, tensor.theirs, tensor.bound) == ("allreduce, torch", "allreduce", 1e-6)


def test_every_row_is_measured() -> None:
    for goal in (*ENGINE, *LAYERS):
        names = set(GROUPS[goal.group].contenders)
        assert goal.ours in names
        assert isinstance(goal, Limit) or goal.theirs in names


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    theirs = changed(ROW, contender="Gloo, one by one", library="gloo", time_us=120.0, rounds_us=[90.0, 120.0, 120.0])
    line = line_of(GOAL, [ROW, theirs], 2)
    assert (line.measured, line.met) == ("9.00x", False)
    assert line.cases == {"low": 3.0, "median": 9.0, "high": 12.0}
    assert line_of(replace(GOAL, bound=9), [ROW, theirs], 2).met
    assert line_of(GOAL, [ROW], 2).met is None
    assert line_of(GOAL, [ROW, theirs], 4).met is None


def test_a_limit_is_a_time() -> None:
    limit = Limit("a row", "small", "engine", "", 9e-6)
    assert line_of(limit, [ROW], 2).met is False
    assert line_of(replace(limit, bound=1e-5), [ROW], 2).met
    assert line_of(limit, [], 2).met is None


def test_added_time_is_the_median_of_the_rounds_differences() -> None:
    base = changed(ROW, contender="base", rounds_us=[9.0, 9.0, 9.0])
    goal = Added("a row", "small", "engine", "base", 1e-6)
    line = line_of(goal, [ROW, base], 2)
    assert (line.goal, line.measured, line.met) == ("<= 1 us more", "1 us more", True)
    assert line_of(replace(goal, bound=5e-7), [ROW, base], 2).met is False
    assert line_of(goal, [ROW, changed(base, rounds_us=[11.0, 12.0, 42.0])], 2).measured == "2 us less"
    assert line_of(goal, [ROW], 2).met is None


@pytest.mark.parametrize("groups", [("8 bytes", "small"), pytest.param(("training",), marks=pytest.mark.torch)])
def test_a_run(tmp_path: Path, groups: tuple[str, ...]) -> None:
    if groups == ("training",) and not (HAS_TORCH and find_launcher().program):
        pytest.skip("needs torch and mpirun")
    words = [word for group in groups for word in ("--group", group)]
    run_module("pycollective.bench.engine", "--quick", "--out", "out", *words, cwd=tmp_path)
    result = decode((tmp_path / "out/engine-speed.json").read_text(), EngineResult)
    assert to_json(result) == (tmp_path / "out/engine-speed.json").read_text()
    assert {row.group for row in result.rows} == set(groups)
    assert {"pycollective"} <= {row.library for row in result.rows}
    assert all(row.wrong == 0 and row.time_us > 0 for row in result.rows)
    for group in groups:
        assert len({len(row.rounds_us) for row in result.rows if row.group == group}) == 1  # they are pairs
    if HAS_TORCH and find_launcher().program:
        assert "gloo" in {row.library for row in result.rows}, result.notes
    assert "bench.engine" in (tmp_path / "out/engine-speed.md").read_text()


def test_an_unknown_group_is_reported(tmp_path: Path) -> None:
    assert "huge" in run_module("pycollective.bench.engine", "--group", "huge", cwd=tmp_path, code=2).stderr


def test_a_result_with_a_missing_field_is_refused() -> None:
    with pytest.raises(ValueError, match="schema"):
        decode('{"schema": "other"}', EngineResult)
    with pytest.raises(ValueError, match="lines"):
        decode('{"schema": "pycollective-engine-bench/1"}', EngineResult)
