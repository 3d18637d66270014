"""Autotuning on a job's own traffic: results stay right meanwhile, and what was found is kept for the next run."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.operations import SECONDS, on_engines
from pycollective import local_world
from pycollective.engine import Engine, Item, Settings, autotune


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "SAMPLE_SECONDS", 0.02)


def job(engine: Engine, kept: Path) -> None:
    """Gradients until rank 0 finds in the file what was tuned for so many ranks, checked all along."""
    end = time.monotonic() + SECONDS
    x = [np.full(1000 * (i + 1), float(engine.rank + 1)) for i in range(5)]
    total = engine.size * (engine.size + 1) / 2
    while True:
        got = engine.run([Item("allreduce", f"grad.{i}", each) for i, each in enumerate(x)])
        assert all((each == total).all() for each in got)
        through = np.array([autotune.load(str(kept), engine.size) is not None or time.monotonic() > end])
        if engine.run([Item("broadcast", "through", through, root=0)])[0][0]:
            return


def test_it_finds_something_and_keeps_it(tmp_path: Path) -> None:
    log, kept = tmp_path / "log.csv", tmp_path / "kept.json"
    settings = Settings(autotune=True, autotune_log=str(log), autotune_file=str(kept))
    on_engines(2, lambda engine: job(engine, kept), settings=settings)
    rows = list(csv.reader(log.open()))
    assert rows[0] == ["fusion_threshold_bytes", "cycle_time_ms", "score_bytes_per_second"]
    tried = [(int(row[0]), float(row[1]), float(row[2])) for row in rows[1:]]
    assert {row[0] for row in tried} == set(autotune.THRESHOLDS)
    assert {round(row[1] / 1e3, 6) for row in tried} == set(autotune.CYCLE_TIMES)
    assert all(score > 0 for _, _, score in tried)
    found = json.loads(kept.read_text())["2"]
    first = tried[: len(autotune.THRESHOLDS)]
    assert found["fusion_threshold"] == max(first, key=lambda row: row[2])[0]
    assert found["cycle_time"] in autotune.CYCLE_TIMES
    sizes = [most for most, _ in found["topologies"]]
    assert sizes == sorted(sizes)
    assert sizes[-1] >= 1 << 40

    log.unlink()  # the next run takes what was found and measures nothing
    x = np.arange(7.0)

    def again(engine: Engine) -> Any:
        time.sleep(0.1)
        return engine.run([Item("allreduce", "x", x)])[0]

    assert all((got == 2 * x).all() for got in on_engines(2, again, settings=settings))
    assert not log.exists()


def test_numbers_of_ranks_are_kept_apart(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    autotune.save(str(kept), 7, {"fusion_threshold": 1, "cycle_time": 1.0, "topologies": []})
    assert autotune.load(str(kept), 2) is None
    settings = Settings(autotune=True, autotune_file=str(kept))

    on_engines(2, lambda engine: job(engine, kept), settings=settings)
    assert autotune.load(str(kept), 7) == {"fusion_threshold": 1, "cycle_time": 1.0, "topologies": []}
    assert autotune.load(str(kept), 2) is not None


def test_a_file_that_makes_no_sense_is_replaced(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("{not json")
    on_engines(2, lambda engine: job(engine, kept), settings=Settings(autotune=True, autotune_file=str(kept)))
    assert autotune.load(str(kept), 2) is not None


def test_closing_before_it_is_through() -> None:
    """Without traffic it never is; close does not wait for it."""
    on_engines(2, lambda engine: None, settings=Settings(autotune=True))


def test_what_is_used_by_default_keeps_the_bits() -> None:
    """Unless asked for others, only topologies that reduce in rank order are tried."""
    xs = np.random.default_rng(0).normal(size=(3, 100_000)).astype(np.float32)
    right = (xs[0] + xs[1]) + xs[2]

    def body(engine: Engine) -> bytes:
        return bytes(engine.run([Item("allreduce", "x", xs[engine.rank])])[0].tobytes())

    assert on_engines(3, body, settings=Settings(autotune=True)) == [right.tobytes()] * 3


def test_the_fastest_topology_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the slowest rank's time, and not for a hair's breadth."""

    def pretend(comm: Any, part: Any, topology: str) -> float:
        slow = {"direct": 1.0, "ring": 0.97, "tree": 0.5}[topology]
        if topology == "tree" and (part.nbytes < 1 << 20 or comm.rank == 1):
            slow = 2.0 if part.nbytes < 1 << 20 else 0.6
        return slow

    monkeypatch.setattr(autotune, "_time", pretend)
    rows = local_world(2).run(lambda comm: autotune.choose_topologies(comm, ["direct", "ring", "tree"]))
    assert rows[0] == rows[1]
    chosen = dict(zip(autotune.SIZES, [name for _, name in rows[0]], strict=True))
    assert {name for size, name in chosen.items() if size < 1 << 20} == {"direct"}
    assert {name for size, name in chosen.items() if size >= 1 << 20} == {"tree"}
