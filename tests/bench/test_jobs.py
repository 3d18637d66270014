"""Two jobs on the same cores: how the factor is computed, and a run."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launch import run_module
from pycollective.bench import jobs
from pycollective.bench.ranks.launch import LaunchError
from pycollective.bench.workload.plan import OURS, Budget, Plan


def test_a_factor_compares_two_jobs_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    running, lock = 0, threading.Lock()

    def launch(plan: Plan, ranks: int, launcher: Any) -> Any:
        """10 us alone, 30 us while another job runs; the first and the last turns are as if alone."""
        nonlocal running
        with lock:
            running += 1
        time.sleep(0.1)
        turn = 10.0 * (2 * running - 1)
        time.sleep(0.1)
        with lock:
            running -= 1
        [[candidate]] = plan.groups
        assert (candidate.library, candidate.case.nbytes, candidate.case.ranks, ranks) == (OURS, 4096, 3, 3)
        assert launcher.kind == OURS
        yield {"kind": "begin"}
        yield {"kind": "row", "row": {"rounds_us": [10.0, 10.0, *[turn] * 4, 10.0, 10.0]}}

    monkeypatch.setattr(jobs, "launch", launch)
    found = jobs.factor_of(OURS, 4096, 3, 2, Budget())
    assert (found.alone, found.together, found.factor) == pytest.approx((1e-5, 3e-5, 3.0))


def test_a_factor_beside_busy_processes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    beside = 0

    @contextlib.contextmanager
    def busy_neighbours(count: int) -> Iterator[None]:
        nonlocal beside
        beside = count
        yield
        beside = 0

    def times_of(library: str, size: int, ranks: int, jobs: int, budget: Budget) -> list[float]:
        assert (jobs, budget.block_s) == (1, 0.1)
        return [1e-6 * (1 + 2 * beside)]

    monkeypatch.setattr(jobs, "busy_neighbours", busy_neighbours)
    monkeypatch.setattr(jobs, "times_of", times_of)
    for neighbours, shown in (
        (1, "busy process 3 us: 3.00x (goal <= 3x) met"),
        (2, "processes 5 us: 5.00x (goal <= 3x) TOO SLOW"),
    ):
        with pytest.raises(SystemExit):
            jobs.app(["--sizes", "8", "--peers", "none", "--neighbours", str(neighbours)])
        assert shown in " ".join(capsys.readouterr().out.split())


def test_a_library_without_a_result_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "launch", lambda *_, **__: iter([{"kind": "end"}]))
    with pytest.raises(LaunchError, match="pycollective could not be measured"):
        jobs.times_of(OURS, 8, 2, 1, Budget())


def test_the_command(tmp_path: Path) -> None:
    words = ["--quick", "--rounds", "1", "--sizes", "8", "--peers", "none", "--json", "out.json"]
    done = run_module("pycollective.bench.jobs", *words, cwd=tmp_path)
    document = json.loads((tmp_path / "out.json").read_text())
    assert (document["schema"], document["ranks"]) == (jobs.SCHEMA, 2)
    [row] = document["rows"]
    assert (row["library"], row["bytes"]) == (OURS, 8)
    assert row["factor"] == pytest.approx(row["together"] / row["alone"])
    assert "pycollective, 8 B" in done.stdout
