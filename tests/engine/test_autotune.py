"""Autotuning on a job's traffic: results stay correct meanwhile, and the result is kept for the next run."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.operations import SECONDS, on_engines
from engine.two_hosts import on_two_hosts
from pycollective.comm import tuning_file
from pycollective.engine import Engine, Item, Settings, autotune


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "SAMPLE_SECONDS", 0.02)


def job(engine: Engine, kept: Path, note: Callable[[Engine], None] = lambda engine: None) -> None:
    """Gradients until rank 0 finds the tuned values for these ranks in the file, with checks throughout."""
    end = time.monotonic() + SECONDS
    x = [np.full(1000 * (i + 1), float(engine.rank + 1)) for i in range(5)]
    total = engine.size * (engine.size + 1) / 2
    while True:
        got = engine.run([Item("allreduce", f"grad.{i}", each) for i, each in enumerate(x)])
        assert all((each == total).all() for each in got)
        note(engine)
        found = kept_by(kept, tuning_file.layout(engine.comm.backend.group.nodes.of)) if engine.rank == 0 else None
        through = np.array([found is not None or time.monotonic() > end])
        if engine.run([Item("broadcast", "through", through, root=0)])[0][0]:
            return


def kept_by(path: Path, layout: str) -> tuning_file.Fusion | None:
    found = tuning_file.read(str(path))
    world = found.worlds.get(layout) if found is not None else None
    return world.fusion if world is not None else None


def test_a_result_is_found_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, kept = tmp_path / "log.csv", tmp_path / "kept.json"
    monkeypatch.setenv("PYCOLLECTIVE_AUTOTUNE_FILE", str(kept))  # the older name
    monkeypatch.setenv("HOROVOD_AUTOTUNE", "1")
    monkeypatch.setenv("HOROVOD_AUTOTUNE_LOG", str(log))
    on_engines(2, lambda engine: job(engine, kept))
    rows = list(csv.reader(log.open()))
    assert rows[0] == ["fusion_threshold_bytes", "cycle_time_ms", "score_bytes_per_second"]
    tried = [(int(row[0]), float(row[1]), float(row[2])) for row in rows[1:]]
    assert {row[0] for row in tried} == set(autotune.THRESHOLDS)
    assert {round(row[1] / 1e3, 6) for row in tried} == set(autotune.CYCLE_TIMES)
    assert all(score > 0 for _, _, score in tried)
    found = kept_by(kept, "2")
    first = tried[: len(autotune.THRESHOLDS)]
    assert found is not None and found.threshold == max(first, key=lambda row: row[2])[0]
    assert found.cycle_time in autotune.CYCLE_TIMES

    log.unlink()  # the next run uses the saved result and measures nothing
    x = np.arange(7.0)

    def again(engine: Engine) -> Any:
        engine.run([Item("barrier", "begun")])
        assert (engine.core.threshold, engine.core.cycle_seconds) == (found.threshold, found.cycle_time)
        return engine.run([Item("allreduce", "x", x)])[0]

    assert all((got == 2 * x).all() for got in on_engines(2, again))
    assert not log.exists()
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "12345")  # what is set is not replaced

    def as_set(engine: Engine) -> int:
        engine.run([Item("barrier", "begun")])
        return int(engine.core.threshold)

    monkeypatch.delenv("HOROVOD_AUTOTUNE")
    assert on_engines(2, as_set) == [12345] * 2


def test_files_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nowhere = str(tmp_path / "missing" / "file")

    def body(engine: Engine) -> None:
        while "is not kept" not in caplog.text:
            engine.run([Item("allreduce", "x", np.ones(1000))])

    on_engines(1, body, settings=Settings(autotune=True, autotune_log=nowhere, tuning=nowhere))
    assert "are not written: [Errno 2]" in caplog.text


def test_closing_before_tuning_has_completed() -> None:
    """Without traffic tuning never ends; close does not wait for it."""
    on_engines(2, lambda engine: None, settings=Settings(autotune=True))


def test_a_batch_takes_the_choice_for_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two allreduces that are fused are one call of a tuned size, with the bits of the default."""
    row = tuning_file.Row("allreduce", 1 << 16, 1 << 20, "star", small=False, tile=4096)
    tuning_file.update(str(tmp_path / "tuning.json"), "3", (row,))
    xs = np.random.default_rng(0).normal(size=(3, 2, 20_000)).astype(np.float32)

    def body(engine: Engine) -> tuple[list[Any], int]:
        engine.core.trace(True)
        items = [Item("allreduce", f"x.{i}", x) for i, x in enumerate(xs[engine.rank])]
        got = engine.run(items)
        return [each.tobytes() for each in got], len(engine.core.take_events()[1])

    default = on_engines(3, body)
    monkeypatch.setenv("PYCOLLECTIVE_TUNING", str(tmp_path / "tuning.json"))
    tuned = on_engines(3, body)
    right = [((x[0] + x[1]) + x[2]).tobytes() for x in np.moveaxis(xs, 1, 0)]
    assert [got for got, _ in default] == [got for got, _ in tuned] == [right] * 3
    assert [steps for _, steps in default] != [steps for _, steps in tuned]


ON_TWO_HOSTS = """
from pathlib import Path
from engine.test_autotune import job
from pycollective.engine import autotune
autotune.SAMPLE_SECONDS = 0.02
kept, log = map(Path, sys.argv[1:])
settings = Settings(autotune=True, tuning=str(kept), autotune_log=str(log))
seen = set()
def note(engine):
    seen.add((engine.core.threshold, engine.core.cycle_seconds))
engine = Engine(comm, settings)
job(engine, kept, note)
engine.run([Item("barrier", "all")])
note(engine)
received = comm.backend.exchange(repr((sorted(seen), engine.traffic())).encode())
assert len(set(received)) == 1, received  # all ranks have seen the same values and cut the same batches
engine.close()
pc.shutdown()
os.environ["PYCOLLECTIVE_TUNING"] = str(kept)
comm = pc.init()
engine = Engine(comm)  # uses the saved result
engine.run([Item("barrier", "begun")])
print(engine.core.threshold, engine.core.cycle_seconds, len(seen))
for turn in range(comm.size):  # any rank may set them, while work is in progress
    works = engine.submit([Item("allreduce", "x", np.ones(9))])
    if comm.rank == turn: engine.tune(1000 + turn, 1e-3 * (turn + 1))
    engine.run([Item("barrier", "synchronized")])
    engine.run([Item("barrier", "heard")])
    assert (engine.core.threshold, engine.core.cycle_seconds) == (1000 + turn, 1e-3 * (turn + 1))
    assert works[0].wait(SECONDS)[0] == comm.size
engine.close()
"""


@pytest.mark.mpi
def test_two_hosts(tmp_path: Path) -> None:
    """Rank 0 decides; all ranks follow in the same round. Only its host has the file."""
    kept, log = tmp_path / "here" / "only" / "kept.json", tmp_path / "here" / "only" / "log.csv"
    done = on_two_hosts(tmp_path, ON_TWO_HOSTS, kept, log, ranks=2).check()
    best = kept_by(kept, "1+1")
    assert best is not None and best.threshold in autotune.THRESHOLDS and best.cycle_time in autotune.CYCLE_TIMES
    for line in done:
        threshold, cycle_time, tried = line.split()
        assert (int(threshold), float(cycle_time)) == (best.threshold, best.cycle_time)
        assert int(tried) > 5
