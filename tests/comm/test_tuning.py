"""PYCOLLECTIVE_TUNING: measured choices serve the calls that name no topology; a file that does not apply does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from launch import launch
from pycollective import Communicator, MismatchError, local_world
from pycollective.comm import tuning_file
from pycollective.comm.planner import Planner
from pycollective.comm.tuning import RULES, Choice
from pycollective.comm.tuning_file import Fusion, Row, World, layout, this_machine, update

MOST = 1 << 62
STAR = Row("allreduce", 64, 4096, "star", small=False, tile=16384, speedup=1.25)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file for 4 ranks of one host, which are to use `star` for some sizes."""
    path = tmp_path / "tuning.json"
    update(str(path), "4", (STAR, Row("scatter", 0, MOST, "tree", small=False)))
    monkeypatch.setenv("PYCOLLECTIVE_TUNING", str(path))
    return path


def topologies(comm: Communicator, *sizes: int, collective: str = "allreduce") -> list[str]:
    return [comm.explain(collective, size).topology for size in sizes]


def test_sizes_of_a_row_take_its_choice(file: Path) -> None:
    def body(comm: Communicator) -> Any:
        assert topologies(comm, 64, 65, 4096, 4097) == ["direct", "star", "star", "direct"]
        assert topologies(comm, 8, collective="scatter") == ["tree"]
        why = str(comm.explain("allreduce", 100))
        assert "1.25 times as fast with tiles of 16384 bytes" in why and "PYCOLLECTIVE_TUNING" in why
        assert comm.explain("allreduce", 100, topology="ring").topology == "ring"
        half = comm.split(comm.rank % 2)  # of two ranks, for which nothing was measured
        assert half is not None and topologies(half, 100) == ["direct"]
        assert topologies(comm.dup(), 100) == ["star"]
        x = np.random.default_rng(comm.rank).normal(size=(3, 1000)).astype(np.float32)
        return [comm.allreduce(part[:n]).tobytes() for part in x for n in (16, 200, 1000)]

    tuned = local_world(4).run(body)
    assert tuned[0] == tuned[3]
    xs = [np.random.default_rng(rank).normal(size=(3, 1000)).astype(np.float32) for rank in range(4)]
    sums = ((xs[0] + xs[1]) + xs[2]) + xs[3]
    assert tuned[0] == [part[:n].tobytes() for part in sums for n in (16, 200, 1000)]


def test_the_variable_for_all_calls_wins(file: Path) -> None:
    script = "import pycollective as pc; print(pc.init().explain('allreduce', 100).topology)"
    for more, expected in ({}, "star"), ({"PYCOLLECTIVE_TOPOLOGY": "ring"}, "ring"):
        done = launch(4, script, env={"PYCOLLECTIVE_TUNING": str(file), **more}, check=True)
        assert [text.strip() for text in done] == [expected] * 4


def test_all_ranks_use_the_file_of_the_first(file: Path) -> None:
    script = f"""
        import os, numpy as np
        if os.environ["PYCOLLECTIVE_RANK"] == "0": os.environ["PYCOLLECTIVE_TUNING"] = {str(file)!r}
        import pycollective as pc, sys
        comm = pc.init()
        assert comm.allreduce(np.ones(100, np.float32))[0] == 4
        print(comm.explain("allreduce", 400).topology)
    """
    assert [text.strip() for text in launch(4, script, check=True)] == ["star"] * 4


def plan(choice: Any, dtype: str = "float32", **more: Any) -> tuple[Any, ...]:
    hosts = more.get("hosts", (0, 0))
    return Planner(0, len(hosts), **more)("allreduce", choice, 400, -1, 0, "sum", dtype)


def test_a_choice_decides_variant_and_tile() -> None:
    steps = {small: plan(Choice("direct", small))[0].steps for small in (True, False)}
    assert steps[True] != steps[False] and plan(RULES)[0].steps == plan(None)[0].steps == steps[True]
    assert (plan(Choice("direct", True, 4096))[-1], plan(None)[-1]) == (4096, 0)
    choices = Choice("direct", True), Choice("direct", False), Choice("direct", False, 64), RULES
    assert len({plan(choice)[2] for choice in choices}) == len(choices)  # the fingerprints differ


def test_ranks_that_choose_differently_are_told() -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(MismatchError):
            comm.allreduce(np.ones(100), topology=Choice("direct", True, 4096 * comm.rank))

    local_world(2).run(body)


def test_between_hosts(file: Path) -> None:
    """Types whose sums are accumulated in a wider one keep a topology that sends no partial sums."""
    hosts, rows = (0, 0, 1, 1), (Row("allreduce", 0, MOST, "ordered(one_in=2)", small=False),)
    update(str(file), layout(hosts), rows)
    assert local_world(4, hosts=hosts).run(lambda comm: topologies(comm, 100)) == [["ordered(one_in=2)"]] * 4
    found = {d: plan(None, d, hosts=hosts, tuned=World(rows))[1] for d in ("float32", "bfloat16")}
    assert found["float32"] == "ordered(one_in=2)" and found["bfloat16"] in ("direct", "star")
    assert (layout((0, 0, 0)), layout((0, 1, 1)), layout((0, 1, 0))) == ("3", "1+2", "")


VALID = msgspec.json.encode(tuning_file.TuningFile(this_machine(), {"4": World((STAR,))})).decode()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (VALID[:-9], "truncated"),
        (VALID.replace("tuning/1", "tuning/2"), "pycollective-tuning/2"),
        (VALID.replace('"star"', '"stern"'), "'stern'"),
        (VALID.replace('"star"', '"ring(a=1)"'), "ring has the parameters"),
        (VALID.replace('"allreduce"', '"alreduce"'), "has no 'alreduce'"),
        (VALID.replace('"star"', '"wheel"').replace('"allreduce"', '"scan"'), "has no 'scan'"),
        (VALID.replace('"up_to":4096', '"up_to":-1'), "up_to"),
        (VALID.replace('"tile":16384', f'"tile":{1 << 64}'), "tile"),
        (VALID.replace('"4"', '"four"'), "four"),
        (VALID.replace(this_machine(), "Cray-1, 1 cores"), "another machine: Cray-1"),
        (VALID + " " * tuning_file.MOST_BYTES, "more than"),
        ("", "truncated"),
        (None, "no such file"),
    ],
)
def test_a_file_that_does_not_apply_is_ignored_with_the_reason(
    text: str | None, why: str, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text(text) if text is not None else file.unlink()
    assert local_world(4).run(lambda comm: topologies(comm, 100)) == [["direct"]] * 4
    assert why in caplog.text and str(file) in caplog.text


def test_a_file_that_others_may_have_written_is_not_read(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o660)
    assert local_world(4).run(lambda comm: topologies(comm, 100)) == [["direct"]] * 4
    assert "lets others write" in caplog.text


def test_results_of_other_worlds_and_of_the_engine_are_kept(file: Path) -> None:
    update(str(file), "4", fusion=Fusion(7, 0.5))
    update(str(file), "2", (STAR,))
    found = tuning_file.read(str(file))
    assert found is not None and found.worlds["2"] == World((STAR,))
    assert found.worlds["4"].fusion == Fusion(7, 0.5) and STAR in found.worlds["4"].rows
    file.write_text(VALID.replace(this_machine(), "Cray-1, 1 cores"))
    assert list(update(str(file), "3", ()).worlds) == ["3"]


def test_without_the_setting_its_format_is_not_loaded() -> None:
    script = "import sys, pycollective; pycollective.init(); print('msgspec' in sys.modules)"
    assert launch(1, script, launcher="alone", check=True)[0].strip() == "False"
