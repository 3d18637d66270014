"""The start and the first calls of a job, measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch import run_module
from pycollective.bench import scale
from pycollective.bench.scale import STAGES


def test_every_stage_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "scale.json"
    done = run_module("pycollective.bench.scale", "--ranks", "2,3", "--json", out, cwd=tmp_path)
    assert "3 ranks" in done.stdout and all(meaning in done.stdout for meaning in STAGES.values())
    seconds = json.loads(out.read_text())["seconds"]
    assert {ranks: set(found) for ranks, found in seconds.items()} == {"2": set(STAGES), "3": set(STAGES)}
    assert all(0 < each < 100 for found in seconds.values() for each in found.values())


def test_64_ranks_are_compared_with_their_goals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = {**dict.fromkeys(STAGES, 1.2), "init": 2.5}
    monkeypatch.setattr(scale, "measure", lambda ranks, timeout: taken)
    with pytest.raises(SystemExit):
        scale.app(["--ranks", "8,64"])
    rows = capsys.readouterr().out.splitlines()
    shown = {stage: next(row for row in rows if meaning in row) for stage, meaning in STAGES.items()}
    assert "<= 2: NOT MET" in shown["init"] and "<= 1.5: met" in shown["ring"]
    assert "<= 2: met" in shown["halving_doubling"] and "<= 1: NOT MET" in shown["split"]
    assert "met" not in shown["wheel"]
    with pytest.raises(SystemExit):
        scale.app(["--ranks", "8"])
    assert "goal" not in capsys.readouterr().out


def test_a_job_that_fails_is_reported(tmp_path: Path) -> None:
    done = run_module("pycollective.bench.scale", "--ranks", "2", "--timeout", "0.01", cwd=tmp_path, code=1)
    assert "2 ranks have not ended within 0.01 s" in done.stderr
