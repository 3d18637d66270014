"""The timeline: one Chrome trace of all ranks, with the waits of every operation and every step of a schedule."""

from __future__ import annotations

import json
import os
import random
import stat
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import IMPORTABLE, run
from speed import until

from engine.operations import every_engine, on_engines, ones
from engine.trace import Trace, read
from engine.two_hosts import on_two_hosts
from launch import launch
from pycollective import Communicator
from pycollective.engine import Engine, Item, Settings
from pycollective.engine.timeline import _unused

TENSORS = {"grad.weight": 50_000, "grad.bias": 10, "größe": 1000}


def steps(engine: Engine, count: int) -> None:
    for _ in range(count):
        works = engine.submit([Item("allreduce", name, np.ones(n)) for name, n in TENSORS.items()])  # a group: fused
        works += engine.submit([Item("broadcast", "weights", np.ones(10), root=engine.size - 1)])
        for work in works:
            work.wait(20)


def traced(comm: Communicator, link: Connection, path: str, topology: str) -> None:
    engine = Engine(comm, Settings(topology=topology))
    steps(engine, 2)  # not in the file
    engine.start_timeline(path, mark_cycles=True)
    steps(engine, 3)
    engine.stop_timeline()
    comm.barrier()
    assert not [name for name in Path(path).parent.iterdir() if name != Path(path)], "parts are left"
    steps(engine, 2)  # not in it either
    engine.close()


def check(trace: Trace, rounds: int, slack: float = 0.0) -> None:
    """What each of four ranks has done; no rank finishes an allreduce before all have begun, but for the slack in s."""
    assert trace.processes == {rank: f"rank {rank}" for rank in range(4)}
    for rank in range(4):
        for name in (*TENSORS, "weights"):
            kind = "BROADCAST" if name == "weights" else "ALLREDUCE"
            assert [one.name for one in trace.row(rank, name)] == [f"NEGOTIATE_{kind}", "QUEUE", kind] * rounds
        packed = Counter(one.name for one in trace.row(rank, "fusion buffer"))
        assert packed["MEMCPY_IN_FUSION_BUFFER"] == packed["MEMCPY_OUT_FUSION_BUFFER"]
    for name in TENSORS:
        rows = [[s for s in trace.row(rank, name) if s.name == "ALLREDUCE"] for rank in range(4)]
        for together in zip(*rows, strict=True):
            assert max(s.begin for s in together) <= min(s.end for s in together) + slack * 1e6


@pytest.mark.parametrize("topology", ["", "ring"])
def test_four_ranks(tmp_path: Path, topology: str) -> None:
    path = tmp_path / "timeline.json"
    run(4, traced, str(path), topology)
    trace = read(path)
    check(trace, 3)
    assert min(one.begin for one in trace.slices) < 60e6, "times count from the start of the trace"
    for rank in range(4):
        packed = Counter(one.name for one in trace.row(rank, "fusion buffer"))
        assert min(packed["MEMCPY_IN_FUSION_BUFFER"], packed["REDUCE"]) >= 3
        assert trace.row(rank, "steps"), rank
    for step in (one for rank in range(4) for one in trace.row(rank, "steps")):
        assert set(step.args["peers"]) <= {0, 1, 2, 3} - {step.pid}
        assert step.args["chunk"] >= 0
        assert set(step.args["peers"]) == {*step.args["reads"], *step.args["writes"]} - {step.pid}
    marks = Counter(mark["pid"] for mark in trace.instants)
    assert len(set(marks.values())) == 1, "all ranks run the same batches"
    assert all(mark["name"] == "CYCLE_START" for mark in trace.instants)
    assert trace.arrows
    assert all(begin["pid"] != end["pid"] for begin, end in trace.arrows)
    if topology == "ring":  # every rank waits for the one before it
        assert {(begin["pid"], end["pid"]) for begin, end in trace.arrows} >= {(r, (r + 1) % 4) for r in range(4)}
    for name in TENSORS:
        negotiated = [[s.end for s in trace.row(rank, name) if s.name.startswith("NEG")] for rank in range(4)]
        for ends in zip(*negotiated, strict=True):
            assert max(ends) - min(ends) < 0.01, "one moment for all"
    for begin, end in trace.arrows:  # which do not go back in time
        begun = next(s for s in trace.row(begin["pid"], "steps") if s.begin <= begin["ts"] <= s.end)
        assert begun.begin <= end["ts"] + 0.01


ENVIRONMENT = """
    import os
    import numpy as np, pycollective
    from pycollective.engine import Engine, Item
    engine = Engine(pycollective.init())
    for _ in range(3):
        engine.run([Item("allreduce", name, np.ones(9)) for name in ("a", "b")])
    engine.close()
    print(engine.settings.timeline, [name for name in os.listdir() if not name.startswith(("script", "out"))])
"""


def test_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    env = {"HOROVOD_TIMELINE": str(path), "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
    launch(2, ENVIRONMENT, env=IMPORTABLE | env).check()
    trace = read(path)
    for rank in range(2):
        assert Counter(s.name for s in trace.row(rank, "a"))["ALLREDUCE"] == 3
    # fused: one batch per round, and one mark per batch
    assert Counter(mark["pid"] for mark in trace.instants) == {0: 3, 1: 3}


def test_dynamic_waits_to_be_started() -> None:
    done = launch(2, ENVIRONMENT, env=IMPORTABLE | {"HOROVOD_TIMELINE": "DYNAMIC"}).check()
    assert list(done) == ["DYNAMIC []\n"] * 2


def test_start_and_stop_again(tmp_path: Path) -> None:
    def body(engine: Engine) -> None:
        for turn in range(3):
            engine.start_timeline(tmp_path / f"{turn}.json")
            with pytest.raises(RuntimeError, match="already"):
                engine.start_timeline(tmp_path / "other.json")
            steps(engine, turn)
            engine.stop_timeline()
            engine.stop_timeline()  # a second call does nothing
        engine.run([Item("barrier", "merged")])

    on_engines(2, body)
    for turn in range(3):
        trace = read(tmp_path / f"{turn}.json")
        names = Counter(s.name for s in trace.slices)
        assert names["NEGOTIATE_BROADCAST"] == 2 * turn
        assert not trace.instants, "cycles were not asked for"


def test_it_can_be_read_while_the_job_runs(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"

    def body(engine: Engine) -> None:
        engine.start_timeline(path, mark_cycles=True)
        for turn in range(2):  # the file keeps growing
            engine.run([Item("allreduce", f"turn{turn}", np.ones(3))])
            until(lambda turn=turn: _seen(_events_so_far(path), f"turn{turn}") == {0, 1})
        engine.run([Item("barrier", "read")])
        engine.stop_timeline()

    on_engines(2, body)
    assert _seen(json.loads(path.read_text())["traceEvents"], "turn0") == {0, 1}


def test_what_began_before_the_trace_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"

    def body(engine: Engine) -> None:
        item = Item("allreduce", "early", np.ones(3))
        works = engine.submit([item]) if engine.rank == 0 else []  # long before the other rank does
        engine.start_timeline(path)
        engine.run([Item("barrier", "started")])
        works = works or engine.submit([item])
        works[0].wait(20)
        engine.stop_timeline()

    on_engines(2, body)
    cut, queue, _ = read(path).row(0, "early")
    assert (cut.name, cut.begin) == ("NEGOTIATE_ALLREDUCE", 0)
    assert abs(cut.end - queue.begin) < 1  # microseconds


def _seen(events: list[dict[str, Any]], name: str) -> set[int]:
    """The ranks whose part in an allreduce of that name is present."""
    return {e["pid"] for e in events if e["name"] == "ALLREDUCE" and e["args"]["operation"] == name}


def _events_so_far(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    text = text[: len(text) - random.randrange(3)]  # as if cut anywhere
    events = json.loads(text[: text.rindex(",\n")] + "]") if ",\n" in text else []
    assert not events or events[0]["args"]["start_time_since_epoch_in_micros"] > 1e15
    return list(events)


def test_engines_of_one_process_do_not_share_a_file_and_follow_no_links(tmp_path: Path) -> None:
    """HOROVOD_TIMELINE starts those of process sets, too. In a folder of others, a link may lead to root's files."""
    path, victim = tmp_path / "timeline.json", tmp_path / "victim"
    victim.write_text("root's")
    for name in ("timeline.json.rank0", "timeline.json.rank1", "timeline.json.complete"):
        (tmp_path / name).symlink_to(victim)

    def body(engine: Engine) -> Path:
        other = Engine(engine.comm)
        engine.start_timeline(path)
        derived = _unused(path, other.comm.name)
        if engine.rank == 0:
            derived.symlink_to(victim)
        engine.comm.barrier()
        other.start_timeline(path)
        other.run([ones("second")])
        engine.run([ones("first")])
        other.close()
        engine.stop_timeline()
        engine.comm.barrier()
        return derived

    derived, _ = on_engines(2, body)
    for file, operation in ((path, "first"), (derived, "second")):
        assert not file.is_symlink()
        trace = read(file)
        assert trace.processes == {0: "rank 0", 1: "rank 1"}
        assert {s.args["operation"] for s in trace.slices if s.name == "ALLREDUCE"} == {operation}
    assert victim.read_text() == "root's"


@every_engine(2)
def test_where_it_cannot_be_written(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(OSError):
        engine.start_timeline(tmp_path / "nowhere" / "timeline.json")
    steps(engine, 1)


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """As root, HOROVOD_TIMELINE=/dev/null once replaced the device by a regular file."""
    path = tmp_path / "null"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        path.write_bytes(b"")
    except PermissionError:
        pytest.skip("this user may not make devices here")

    def body(engine: Engine) -> None:
        engine.start_timeline(path)
        steps(engine, 1)
        engine.stop_timeline()

    on_engines(2, body)
    assert stat.S_ISCHR(path.stat().st_mode)


ON_TWO_HOSTS = """
from engine.test_timeline import steps
from pycollective.engine import clocks, timeline
from pathlib import Path
from typing import Any
path, other, nowhere = map(Path, sys.argv[1:])
if comm.cross_rank == 1:  # a clock that runs three times as fast
    clocks.now = lambda: 3 * time.monotonic_ns()
    slice_of = timeline._slice
    timeline._slice = lambda *row: slice_of(*row[:3], 3 * row[3], 3 * row[4], row[5])
engine = Engine(comm)  # HOROVOD_TIMELINE
for _ in range(3):
    steps(engine, 1)
    time.sleep(0.2)
engine.stop_timeline()
steps(engine, 1)  # not in the file
if engine.rank == 0:
    assert os.listdir(path.parent) == [path.name], "parts are left"
assert not os.listdir(os.environ.get("TMPDIR", path.parent / "none")) if comm.cross_rank else True
try:
    engine.start_timeline(nowhere)
except OSError as error:
    print("raised", "rank 0" in str(error))
engine.start_timeline(other, mark_cycles=True)
steps(engine, 2)
engine.close()
"""


@pytest.mark.mpi
def test_two_hosts(tmp_path: Path) -> None:
    """Parts are sent as messages, as the second host has neither that folder nor that clock."""
    only = tmp_path / "here" / "only"
    path, other = only / "timeline.json", only / "other.json"
    env = {"HOROVOD_TIMELINE": str(path)}
    victim, link = tmp_path / "victim", tmp_path / "tmp" / "timeline.json.rank2"
    victim.write_text("root's")
    link.parent.mkdir()
    link.symlink_to(victim)  # another user's, in the folder of temporary files
    done = on_two_hosts(tmp_path, ON_TWO_HOSTS, path, other, tmp_path / "nowhere" / "t.json", env=env).check()
    assert list(done) == ["raised True\n"] * 4, done.report()
    for file, rounds in ((path, 3), (other, 2)):
        trace = read(file)
        check(trace, rounds, slack=0.1)  # clocks differ
        for rank in range(4):
            slices = [one.name for one in trace.row(rank, "fusion buffer")]
            assert slices.count("ALLREDUCE") >= rounds, "a slice each batch"
        marks = Counter(mark["pid"] for mark in trace.instants)
        assert len(set(marks.values())) == (1 if file == other else 0), "asked for in the second only"
    assert not list(link.parent.iterdir()), "parts are left on the second host"
    assert victim.read_text() == "root's"
