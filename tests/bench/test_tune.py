"""`pycollective tune`: what is measured, what is kept, and that calls then use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launch import CLI, run_command
from pycollective.bench import tune
from pycollective.bench.peers.pycollective import choice_in, find_topology, written
from pycollective.bench.row import Row
from pycollective.bench.workload.cases import Case
from pycollective.comm import tuning_file
from pycollective.comm.tuning import RULES, Choice

CASES = [Case("allreduce", "float32", "sum", count, 2) for count in (16, 256, 4096)]


def rows(case: Case, times: dict[str, float]) -> list[Row]:
    """Microseconds by "choice path"."""
    return [
        Row(case.collective, "pycollective", words.split()[0], words.split()[1], case.ranks, case.nbytes, case.count,
            case.dtype, case.op, case.root, False, time, 0.0, 0.0, 0, 0, 1, [time] * 3)
        for words, time in times.items()
    ]  # fmt: skip


def kept(*times: dict[str, float]) -> list[tuple[Any, ...]]:
    found = tune.kept_rows({case: rows(case, each) for case, each in zip(CASES, times, strict=False)}, CASES)
    return [(row.above, row.up_to, row.topology, row.small, row.tile, row.speedup) for row in found]


def test_the_fastest_is_kept_if_it_is_faster_on_all_arrays() -> None:
    rules = {"untuned plain": 10.0, "untuned shared": 10.0}
    star, ring = "star/large", "ring/small/4096"
    assert kept(rules | {f"{star} plain": 8, f"{star} shared": 8, f"{ring} plain": 5, f"{ring} shared": 5}) == [
        (16, 256, "ring", True, 4096, 2.0)
    ]
    assert kept(rules | {f"{star} plain": 9.7, f"{star} shared": 9.7}) == []
    assert kept(rules | {f"{star} plain": 5, f"{star} shared": 10.5}) == []
    assert kept(rules | {f"{star} plain": 5}) == []  # on shared arrays it has failed
    assert kept({"star/large plain": 1}) == []


def test_ranges_end_midway_to_the_next_size() -> None:
    faster = {"untuned plain": 10.0, "star/large plain": 8.0}
    assert [row[:2] for row in kept(faster, faster, faster)] == [(16, 256), (256, 4096), (4096, 65536)]
    assert [row[:2] for row in kept({"untuned plain": 1.0}, faster)] == [(256, 4096)]


def test_choices_keep_the_bits_unless_others_are_wanted() -> None:
    def names(collective: str, hosts: tuple[int, ...], any_order: bool = False) -> list[str]:
        return [choice.topology for choice in tune.first_choices(collective, 64, hosts, any_order)]

    assert names("allreduce", (0, 0, 0)) == ["", "direct", "direct", "star"]  # on one host, ordered equals direct
    assert "ordered" in names("allreduce", (0, 0, 1, 1))
    assert {"ring", "tree", "wheel"} <= set(names("allreduce", (0,) * 4, any_order=True))
    assert {"tree", "ring"} & set(names("broadcast", (0, 0, 0)))  # it adds nothing
    assert tune.first_choices("allreduce", 64 << 20, (0, 0), False) == [RULES, Choice("direct"), Choice("star")]


@pytest.mark.parametrize("choice", [RULES, Choice("wheel(hub=1)", True), Choice("direct", False, 65536)])
def test_choices_have_a_written_form(choice: Choice) -> None:
    assert choice_in(written(choice)) == find_topology(written(choice)) == choice


def test_it_writes_a_file_that_calls_then_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--quick", "--collective", "broadcast", "--sizes", "64", "--out", "tuned.json")
    alone = run_command(*CLI, "tune", "--ranks", "3", *words, cwd=tmp_path)
    assert "PYCOLLECTIVE_TUNING=tuned.json" in alone.stdout
    started = run_command(*CLI, "run", "-np", "2", *CLI, "tune", *words, cwd=tmp_path)
    assert started.stdout.count("written") == 1
    found = tuning_file.read(str(tmp_path / "tuned.json"))
    assert found is not None and set(found.worlds) == {"2", "3"}
    monkeypatch.setenv("PYCOLLECTIVE_TUNING", "tuned.json")
    race = ("default", "untuned", "direct/large/64K", "--ranks", "2", "--peers", "none", "--quick")
    again = run_command(*CLI, "bench", *race, "--collective", "broadcast", "--sizes", "64K", cwd=tmp_path)
    assert "untuned" in again.stdout and "no wrong elements" in again.stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--collective", "mix"], "'mix'"),
        (["--out", "nowhere/file"], "no folder nowhere"),
        (["--ranks", "0"], "from 1 to"),
        (["--sizes", "big"], "big"),
    ],
)
def test_refusals(words: list[str], problem: str, tmp_path: Path) -> None:
    assert problem in run_command(*CLI, "tune", *words, code=2, cwd=tmp_path).stderr
