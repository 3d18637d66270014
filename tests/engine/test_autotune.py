"""Autotuning on a job's traffic: results stay correct meanwhile, and the result is kept for the next run."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.operations import SECONDS, on_engines
from engine.two_hosts import on_two_hosts
from pycollective import local_world
from pycollective.engine import Engine, Item, Settings, autotune


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "SAMPLE_SECONDS", 0.02)


def job(engine: Engine, kept: Path, note: Callable[[Engine], None] = lambda engine: None) -> None:
    """Gradients until rank 0 finds the tuned values for this number of ranks in the file, with checks throughout."""
    hosts = engine.comm.backend.group.nodes.count
    end = time.monotonic() + SECONDS
    x = [np.full(1000 * (i + 1), float(engine.rank + 1)) for i in range(5)]
    total = engine.size * (engine.size + 1) / 2
    while True:
        got = engine.run([Item("allreduce", f"grad.{i}", each) for i, each in enumerate(x)])
        assert all((each == total).all() for each in got)
        note(engine)
        through = np.array([autotune.load(str(kept), engine.size, hosts) is not None or time.monotonic() > end])
        if engine.run([Item("broadcast", "through", through, root=0)])[0][0]:
            return


def test_a_result_is_found_and_kept(tmp_path: Path) -> None:
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

    log.unlink()  # the next run uses the saved result and measures nothing
    x = np.arange(7.0)

    def again(engine: Engine) -> Any:
        time.sleep(0.1)
        return engine.run([Item("allreduce", "x", x)])[0]

    assert all((got == 2 * x).all() for got in on_engines(2, again, settings=settings))
    assert not log.exists()


OF_SEVEN = '{"7": {"fusion_threshold": 1, "cycle_time": 1.0, "topologies": []}}'


@pytest.mark.parametrize("text", [OF_SEVEN, "{not json", OF_SEVEN.replace("7", "2").replace("1", '"many"', 1)])
def test_results_are_kept_per_number_of_ranks_and_an_invalid_file_is_replaced(tmp_path: Path, text: str) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text(text)
    kept.chmod(0o600)
    assert autotune.load(str(kept), 2) is None
    on_engines(2, lambda engine: job(engine, kept), settings=Settings(autotune=True, autotune_file=str(kept)))
    assert autotune.load(str(kept), 2) is not None
    if text == OF_SEVEN:
        assert autotune.load(str(kept), 7) == autotune.Found(1, 1.0, [])


def test_a_file_that_others_may_have_written_is_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = tmp_path / "kept.json"
    autotune.save(str(kept), 2, autotune.Found(1, 1.0, []))
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.chmod(0o660)
    assert autotune.load(str(kept), 2) is None
    assert "lets others write" in caplog.text


def test_files_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nowhere = str(tmp_path / "missing" / "file")

    def body(engine: Engine) -> None:
        while "is not kept" not in caplog.text:
            engine.run([Item("allreduce", "x", np.ones(1000))])

    on_engines(1, body, settings=Settings(autotune=True, autotune_log=nowhere, autotune_file=nowhere))
    assert "are not written: [Errno 2]" in caplog.text


def test_closing_before_tuning_has_completed() -> None:
    """Without traffic tuning never ends; close does not wait for it."""
    on_engines(2, lambda engine: None, settings=Settings(autotune=True))


def test_the_defaults_keep_the_bits() -> None:
    """By default, only topologies that reduce in rank order are tried."""
    xs = np.random.default_rng(0).normal(size=(3, 100_000)).astype(np.float32)
    right = (xs[0] + xs[1]) + xs[2]

    def body(engine: Engine) -> bytes:
        return bytes(engine.run([Item("allreduce", "x", xs[engine.rank])])[0].tobytes())

    assert on_engines(3, body, settings=Settings(autotune=True)) == [right.tobytes()] * 3


def test_the_fastest_topology_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the slowest rank's time, with a threshold."""

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


ON_TWO_HOSTS = """
from pathlib import Path
from engine.test_autotune import job
from pycollective.engine import autotune
autotune.SAMPLE_SECONDS = 0.02
kept, log = map(Path, sys.argv[1:])
settings = Settings(autotune=True, autotune_file=str(kept), autotune_log=str(log))
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
if comm.rank == 0: log.unlink()
comm.barrier()

engine = Engine(comm, settings)  # uses the saved result
engine.run([Item("barrier", "begun")])
print(engine.core.threshold, engine.core.cycle_seconds, len(seen))
engine.close()
engine = Engine(comm)
for turn in range(comm.size):  # any rank may set them, while work is in progress
    works = engine.submit([Item("allreduce", "x", np.ones(9))])
    if comm.rank == turn: engine.tune(1000 + turn, 1e-3 * (turn + 1))
    engine.run([Item("barrier", "synchronized")])
    engine.run([Item("barrier", "heard")])
    assert (engine.core.threshold, engine.core.cycle_seconds) == (1000 + turn, 1e-3 * (turn + 1))
    assert works[0].wait(SECONDS)[0] == comm.size
engine.close()
assert not (comm.rank == 0 and log.exists())
"""


@pytest.mark.mpi
def test_two_hosts(tmp_path: Path) -> None:
    """Rank 0 decides; all ranks follow in the same round. Only its host has the file."""
    kept, log = tmp_path / "here" / "only" / "kept.json", tmp_path / "here" / "only" / "log.csv"
    done = on_two_hosts(tmp_path, ON_TWO_HOSTS, kept, log, ranks=2).check()
    found = json.loads(kept.read_text())
    assert list(found) == ["2 on 2 hosts"]
    best = found["2 on 2 hosts"]
    assert best["topologies"] == []
    assert best["fusion_threshold"] in autotune.THRESHOLDS
    assert best["cycle_time"] in autotune.CYCLE_TIMES
    for line in done:
        threshold, cycle_time, tried = line.split()
        assert (int(threshold), float(cycle_time)) == (best["fusion_threshold"], best["cycle_time"])
        assert int(tried) > 5
