"""The table of the collectives: its rules, and that the properties of collectives are listed nowhere else."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import collectives
from pycollective import _core
from pycollective.schedule.collectives import CALLS, COLLECTIVES, NUMBERS, Collective

ROOT = Path(__file__).resolve().parents[2]
ROWS = pytest.mark.parametrize("row", CALLS.values(), ids=CALLS)


def problems_of(root: Path, name: str, text: str) -> list[str]:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return collectives.check(root)


def test_this_repository_names_collectives_in_one_place() -> None:
    assert collectives.check(ROOT) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pycollective/comm/a.py", 'ROOTED = frozenset(("broadcast",))'),
        ("pycollective/comm/cuda/a.py", 'def f(s):\n    return s.collective == "reduce_scatter"'),
        ("pycollective/engine/a.py", 'KINDS = {"reducescatter": 1}'),
        ("pycollective/engine/timeline.py", 'KINDS = {"reduce_scatter": 1}'),
        ("pycollective/cli/a.py", "print(f\"{s.collective == 'reduce'}\")"),
        ("pycollective/cli/main.py", 'match name:\n    case "gather":\n        pass'),
        ("csrc/executor/a.cpp", "bool f(Collective c) { return c == Collective::scatter; }"),
        ("csrc/engine/a.h", "if (s.kind == engine::Kind::alltoall) return;"),
        ("csrc/bindings/a.cpp", 'constexpr std::array kKinds{"allgather"};'),
    ],
)
def test_another_list_of_collectives_is_refused(tmp_path: Path, name: str, text: str) -> None:
    found = problems_of(tmp_path, name, text)
    assert len(found) == 1, found
    assert found[0].startswith(f"{name}:")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pycollective/topologies/a.py", 'NAMES = ("allreduce", "broadcast")'),
        ("pycollective/torch/a.py", 'run("allgather")'),
        ("pycollective/comm/a.py", 'def f():\n    """As allreduce does."""\n    x = "an allgather of bytes"'),
        ("pycollective/cli/a.py", "print(f\"{'reduce' if many else 'copy'} a chunk\"); mark(label='reduce')"),
        ("csrc/executor/a.cpp", "int x;  // as Collective::scatter does"),
    ],
)
def test_where_a_collective_may_be_named_it_may(tmp_path: Path, name: str, text: str) -> None:
    assert problems_of(tmp_path, name, text) == []


def test_no_exception_is_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = dict(collectives.ALLOWED)
    monkeypatch.setattr(collectives, "ALLOWED", {})
    found: dict[str, set[str]] = {}
    for problem in collectives.check(ROOT):
        found.setdefault(problem.split(":")[0], set()).add(problem.split("'")[1])
    assert found == allowed


def test_the_core_has_the_same_calls() -> None:
    assert _core.collectives() == list(CALLS) == list(NUMBERS)


@ROWS
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_pair_of_ranks_shares_one_block_at_most(row: Collective, size: int) -> None:
    chunks = row.required_chunks(size) or 1
    for root in range(size) if row.rooted else (0,):
        for sender, receiver in itertools.product(range(size), repeat=2):
            held = [c for c in range(chunks) if row.starts(sender, c, size, root) and row.ends(receiver, c, size, root)]
            found = row.block(sender, receiver, size, root)
            assert ([] if found is None else [found]) == (held if row.contributes(sender, receiver) else [])


@ROWS
def test_a_results_contributors_are_those_that_contribute(row: Collective) -> None:
    for rank in range(5):
        bits = sum(1 << source for source in range(5) if row.contributes(source, rank))
        assert row.contributors(rank, 0b11111) == bits
        assert bool(bits) == row.has_result(rank)


def test_every_collective_of_topologies_runs_its_own_programs() -> None:
    assert all(row.program in COLLECTIVES for row in CALLS.values())
    assert all(row.program == name for name, row in COLLECTIVES.items())


@pytest.mark.parametrize("field", ["name", "program", "received_as"])
def test_a_row_with_names_that_are_no_strings_is_refused(field: str) -> None:
    wrong: dict[str, Any] = {"name": "a", field: [1, 2]}
    with pytest.raises(TypeError, match=f"{field} must be a string"):
        Collective(**wrong)
