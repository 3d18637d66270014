"""The GPU bench: it measures, detects errors, and counts the bytes that an algorithm must move."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from processes import IMPORTABLE

from gpu import emulation
from launch import run_command
from pycollective.bench.gpu import bits, goals, overlap, parts, rows, small
from pycollective.bench.gpu.candidates import nccl
from pycollective.bench.gpu.candidates.calls import Ours, moved
from pycollective.bench.gpu.clock import Candidate
from pycollective.schedule import Placement, compile

SCALE = parts.TINY


@pytest.fixture
def bench(cuda: ModuleType) -> tuple[parts.Bench, list[rows.Row]]:
    """A bench of three ranks, and the rows that it has measured."""
    found: list[rows.Row] = []
    return parts.Bench(3, SCALE, found.append), found


CANDIDATES: dict[str, set[str]] = {
    "sweep": {*parts.TOPOLOGIES},
    "small": {"direct"},
    "copies": {*parts.TOPOLOGIES, "2 copies"},
    "packing": {"copy kernel", "161 copies"},
    "staged": {"direct", "direct, staged"},
}


@pytest.mark.parametrize("part", CANDIDATES)
def test_parts(bench: Any, part: str) -> None:
    b, found = bench
    parts.PARTS[part](b)
    assert {row.part for row in found} == {part}
    assert {row.candidate for row in found} == CANDIDATES[part]
    for row in found:
        assert row.wrong == 0
        assert len(row.rounds) == SCALE.rounds and min(row.rounds) <= row.seconds <= max(row.rounds)
        assert row.calls % row.sets == 0
    if part == "sweep":
        assert {row.collective for row in found} == set(parts.COLLECTIVES)
        big = [row for row in found if row.nbytes == 1 << 14 and row.candidate == "direct"]
        assert big and all(row.path == "schedule" and row.of_ceiling > 0 for row in big)
    if part == "small":
        assert {row.path for row in found} == {"low-latency"}
    if part == "staged":
        windows, staged = found
        assert staged.least_bytes > windows.least_bytes
    result = rows.Result(rows.provenance(b.clock.cuda, 0, b.ceiling, {"nccl": ""}), ["a note"], found)
    saved = json.loads(result.to_json())
    assert saved["schema"] == rows.SCHEMA and len(saved["rows"]) == len(found)
    assert {"date", "commit", "device", "driver", "cuda_driver", "cuda_runtime", "nccl"} <= set(saved["provenance"])
    assert len(rows.table(found).splitlines()) == len(found) + 1


def test_tuning(bench: Any) -> None:
    """Decreasing numbers of channels, each with the correct result."""
    b, found = bench
    parts.tuning(b)
    assert {row.part for row in found} == {"tile 512 KiB"}
    assert len({row.channels for row in found}) == len({row.candidate for row in found}) >= 2
    assert all(row.wrong == 0 for row in found)


EMULATED = "import gpu.emulation\ngpu.emulation.install()\n"
BROKEN = """
import pycollective.bench.gpu.parts as parts
def hang(bench):
    raise TimeoutError("the stream has not completed")
parts.PARTS["small"] = hang
"""
BENCH = [sys.executable, "-m", "pycollective.bench.gpu"]


def driver(folder: Path, *parts: str, before: str = "") -> list[str]:
    """The command that measures parts in processes with the emulated extension; `before`: code for each of them."""
    (folder / "sitecustomize.py").write_text(EMULATED + before)
    path = os.pathsep.join([str(folder), IMPORTABLE["PYTHONPATH"]])
    options = ["--tiny", "--ranks", "2", "--output", "gpu.json", *(f"--part={part}" for part in parts)]
    return ["env", f"PYTHONPATH={path}", *BENCH, *options]


def read(folder: Path) -> Any:
    return json.loads((folder / "gpu.json").read_text())


@pytest.mark.emulated
def test_the_driver(built: Path, tmp_path: Path) -> None:
    """Parts in separate processes, one of which starts others; rows, checks and settings arrive in the file.

    The first one hangs, which does not end the others.
    """
    done = run_command(*driver(tmp_path, "small", "bits", "tuning", before=BROKEN), cwd=tmp_path, code=1)
    assert [check["passed"] for check in read(tmp_path)["checks"]] == [True]
    assert {row["part"] for row in read(tmp_path)["rows"]} == {"tile 32 KiB"}
    notes = read(tmp_path)["notes"]
    assert any("small, 2 ranks" in note and "the stream has not completed" in note for note in notes)
    line = "| bits of direct, float32 |  | identical | identical | yes | bits, 2 ranks: 20 repeats"
    assert line in done.stdout
    (tmp_path / "other.json").write_text("{}")
    assert line in run_command(*BENCH, "--read", "other.json", "gpu.json", cwd=tmp_path).stdout


@pytest.mark.emulated
def test_what_is_measured_is_saved_at_once(built: Path, tmp_path: Path) -> None:
    """The driver is killed in its first part: the file holds what had been measured."""
    process = subprocess.Popen(driver(tmp_path, "small"), cwd=tmp_path, start_new_session=True)
    try:
        while not (tmp_path / "gpu.json").exists() or not read(tmp_path)["rows"]:
            assert process.poll() is None, "it has completed without a file"
            time.sleep(0.001)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert 0 < len(read(tmp_path)["rows"]) < 4 and read(tmp_path)["provenance"]["device"]


def test_other_bits_are_noticed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    b, _ = bench
    same = [{"aa"}, {"bb"}, {"cc"}]
    monkeypatch.setattr(bits, "_virtual", lambda *given: same[bits.COUNTS.index(given[-1])])
    monkeypatch.setattr(bits, "_on_cpu", lambda _, count: same[bits.COUNTS.index(count)])
    for reported, passed in ((same, True), ([{"aa"}, {"bb", "xx"}, {"cc"}], False), ([{"aa"}, {"bb"}, {"xx"}], False)):
        monkeypatch.setattr(bits, "_processes", lambda _, reported=reported: reported)
        check = bits.check(b.clock, b.ranks, b.ours)
        assert check.passed == passed
        assert ("xx" in check.text) != passed


def measured(part: str, candidate: str, seconds: float, ranks: int = 8, **other: Any) -> rows.Row:
    fields = {"collective": "allreduce", "dtype": "float32", "nbytes": 1 << 28, **other}
    return rows.Row(
        part, candidate, ranks=ranks, seconds=seconds, rounds=(seconds,), calls=1, sets=1, wrong=0, **fields
    )


def test_goals() -> None:
    """The worst case counts; a goal that was not measured is neither met nor missed."""
    found = [
        measured("sweep", "direct", 1e-3, of_ceiling=0.9),
        measured("sweep", "direct", 1e-3, dtype="bfloat16", of_ceiling=0.844),
        measured("sweep", "ring", 1e-3, of_ceiling=0.2),
        measured("nccl", "direct", 1e-3),
        measured("nccl", "nccl", 2.5e-3),
        measured("nccl", "direct", 1e-3, ranks=2, nbytes=1 << 24),
        measured("nccl", "nccl", 1.25e-3, ranks=2, nbytes=1 << 24),
        measured("nccl", "direct", 1e-3, ranks=2, nbytes=1 << 24),  # of another run, in which NCCL is faster
        measured("nccl", "nccl", 1.125e-3, ranks=2, nbytes=1 << 24),
        measured("small", "direct", 3.5e-6, nbytes=8192),
        measured("copies", "direct", 1e-3, collective="broadcast"),
        measured("copies", "7 copies", 1.75e-3, collective="broadcast"),
        measured("staged", "direct", 1e-3),
        measured("staged", "direct, staged", 1.6e-3),
        measured("nccl", "ring", 2.6e-3),
        *(
            measured("tile 32 KiB", f"direct, {c} channels", 1e-3 * t, channels=c)
            for c, t in ((1, 3), (2, 1.1), (8, 1))
        ),
    ]
    lines = goals.lines(found, [rows.Check("bits, 8 ranks", True, "processes, CPU ranks")])
    reported = {(line.row, line.against): (line.measured, line.met) for line in lines}
    assert reported["allreduce, 8 ranks, 256 MiB each", "the ceiling"] == ("84%", False)
    assert reported["allreduce, 8 ranks", "nccl"] == ("2.50x", True)
    assert reported["allreduce, 2 ranks", "nccl"] == ("1.12x", False)
    assert reported["allreduce, 4 ranks", "nccl"] == ("-", None)
    assert reported["allreduce, 8 ranks, 8 KiB, in a graph", ""] == ("3.5 us", True)
    assert reported["broadcast, 8 ranks", "7 copies"] == ("1.75x", True)
    assert reported["allreduce, 8 ranks, staged", "direct"] == ("0.62x", True)
    assert reported["allreduce by ring, 8 ranks, 256 MiB each", "nccl"] == ("0.96x", False)
    assert reported["rate on 16 multiprocessors, of the highest, 8 ranks, 256 MiB each", ""] == ("0.91", True)
    assert reported["bits of direct, float32", ""] == ("identical", True)
    wrong = goals.lines([], [rows.Check("bits, 8 ranks", False, "")])[-1]
    assert (wrong.measured, wrong.met) == ("different", False)
    assert goals.lines([], [])[-1].met is None


def test_a_product_beside_calls() -> None:
    """Fewer blocks count if they have 90% of the highest rate."""
    times = {
        "direct": (1.0, 1.5),
        "direct, 4 channels": (1.1, 1.2),
        "direct, 2 channels": (2.0, 1.1),
        "nccl": (2.0, 1.6),
    }
    rows = [{"candidate": name, "call_seconds": c, "product_seconds": p} for name, (c, p) in times.items()]
    assert overlap.conclusion(rows[:3], 1.0) == "direct, 4 channels: a product takes 20% longer"
    assert "4 channels: a product takes 20% longer; beside NCCL 60%" in overlap.conclusion(rows, 1.0)


def test_a_timeout_names_the_line_of_the_topology(bench: Any) -> None:
    """The step that a kernel has waited for, from the counters in its record."""
    b, _ = bench
    (mine,) = b.ours(b.buffers("float32", 1 << 14), "allreduce", ("ring",))
    schedule = compile("ring", "allreduce", 3, None, Placement.INPLACE, False)
    base, tile, step = 100, 2, 1
    record = ("timeout", 2, 1, 7, base + tile * schedule.stride + step + 1, base, base)
    mine._world = types.SimpleNamespace(size=3, team=types.SimpleNamespace(fault=lambda: record))
    assert f"step {step} of tile {tile}, {schedule.line(1, step)}" in mine.fault()
    assert re.search(r"ring\.py:\d+$", mine.fault())


class Lazy(Ours):
    """Does nothing from its second call on."""

    calls = 0

    def call(self, i: int) -> None:
        type(self).calls += 1
        if type(self).calls == 1:
            super().call(i)


@pytest.mark.parametrize("after", [0, 1])
def test_outputs_that_are_not_written_are_noticed(bench: Any, after: int) -> None:
    """On poisoned memory, before and after the timing."""
    b, found = bench
    buffers = b.buffers("float32", 1 << 14)
    Lazy.calls = 1 - after
    b.compare("trial", buffers, "allreduce", [Lazy(b.world, b.clock, buffers, "allreduce", "direct")])
    assert found[0].wrong == (2 - after) * 3 * buffers.count


def test_a_wrong_sum_is_noticed(bench: Any) -> None:
    b, found = bench
    buffers = b.buffers("bfloat16", 1 << 13)

    def copies_only(i: int) -> None:
        for x, out in zip(buffers.inputs[i % buffers.sets], buffers.outputs[i % buffers.sets], strict=True):
            b.clock.cuda.copy(out.address, x.address, buffers.nbytes, b.clock.stream, 0)

    b.compare("trial", buffers, "allreduce", [], [Candidate("copies", copies_only)])
    assert found[0].wrong > 3 * buffers.count


@pytest.mark.parametrize("n", [2, 4, 8])
def test_least_bytes(n: int) -> None:
    """In units of a rank's buffer: device memory reads and writes of all ranks together."""

    def of(topology: str, collective: str, placement: Placement) -> float:
        root = 0 if collective == "broadcast" else None
        return moved(compile(topology, collective, n, root, placement, False), n << 20) / (n << 20)

    assert of("direct", "allreduce", Placement.WINDOW) == 2 * n  # an owner reads n parts of its chunk and writes n
    assert of("ring", "allreduce", Placement.INPLACE) == 3 * (n - 1) + 2 * (n - 1)  # sums of two, then copies
    assert of("ring", "broadcast", Placement.INPLACE) == 2 * (n - 1)  # each rank reads it from one other
    assert of("direct", "broadcast", Placement.INPLACE) <= 2 * (n - 1)


def test_small_sizes_for_the_sanitizer(cuda: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert small.main() == 0
    assert " 0 wrong elements" in capsys.readouterr().out


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    if emulation.on_device():
        pytest.skip("a GPU is here")
    assert "nothing to measure" in run_command(*BENCH, "--output", "gpu.json", cwd=tmp_path, code=1).stderr
    assert not list(tmp_path.iterdir())


def test_nccl_that_is_missing_or_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYCOLLECTIVE_NCCL", str(tmp_path / "libnccl.so.2"))
    assert nccl.find()[::2] == (None, "no NCCL was found")
    emulation.build_nccl(tmp_path, version=22809)
    library, version, reason = nccl.find()
    assert (library, version) == (None, 22809)
    assert "NCCL 2.28.9 does not support several ranks" in reason


@pytest.mark.emulated
@pytest.mark.parametrize("collective", ["allreduce", "broadcast"])
def test_nccl_as_a_peer(bench: Any, monkeypatch: pytest.MonkeyPatch, collective: str) -> None:
    """Several ranks in one group, with the emulated NCCL."""
    monkeypatch.setenv("PYCOLLECTIVE_NCCL", str(emulation.NCCL))
    monkeypatch.setenv("PC_EMULATED_NCCL_VERSION", "23001")
    library, version, reason = nccl.find()
    assert (nccl.text_of(version), reason) == ("2.30.1", "")
    b, _ = bench
    peer = nccl.Nccl(library, b.clock, 3)
    for dtype in ("float32", "bfloat16"):
        buffers = b.buffers(dtype, 1 << 14)
        buffers.poison()
        peer.candidate(buffers, collective).call(0)
        assert buffers.wrong(collective, exact=True) == 0
    monkeypatch.setitem(nccl._DTYPES, "float32", 99)
    with pytest.raises(RuntimeError, match="invalid argument"):
        peer.candidate(b.buffers("float32", 1 << 14), collective).call(0)
    library.ncclGroupEnd()  # of the group in which the error was raised
