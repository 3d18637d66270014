"""The costs of alignments: which places are measured, and that a slow one is found."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycollective.bench import alignments
from pycollective.bench.workload.plan import PAGE


@given(st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 9000))
def test_places_are_within_a_page_and_at_whole_elements(width: int, most: int) -> None:
    pairs = alignments.offset_pairs(width, most)
    assert (0, 0) in pairs and len(set(pairs)) == len(pairs) <= max(most, 2) + 1
    assert all(0 <= at < PAGE and at % width == 0 for pair in pairs for at in pair)
    assert pairs == alignments.offset_pairs(width, most)


def test_every_pair_of_lines_and_odd_places_are_measured() -> None:
    pairs = set(alignments.offset_pairs(1, 9000))
    assert {(a, b) for a in range(0, PAGE, 64) for b in range(0, PAGE, 64)} < pairs
    assert sum(a % 2 and b % 2 for a, b in pairs) > 500


@pytest.mark.parametrize("operation", ["copy", "sum bfloat16"])
def test_a_slow_place_is_found(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def cost(*arguments: Any) -> Any:
        source, target = arguments[-1]
        return lambda: 500 if source % 64 == 0 and target % 512 == 64 else 100 if (source, target) == (0, 0) else 120

    monkeypatch.setattr(alignments, "_copy", cost)
    monkeypatch.setattr(alignments, "_sum", cost)
    monkeypatch.setattr(alignments, "_shortest", lambda call, block, attempts: block * call())
    found = alignments.costs(operation, 4096, 0.02, None)
    assert (found.best, found.best_at, found.worst) == (1e-7, (0, 0), 5e-7)
    assert found.worst_at[0] % 64 == 0 and found.worst_at[1] % 512 == 64
    assert found.ratio == 5


def test_arrays_begin_where_they_are_asked_to() -> None:
    arrays = alignments.Arrays(4096, "float32")
    made = [arrays.at(role, 4 * role + 12) for role in range(3)]
    assert [(one.ctypes.data % PAGE, one.nbytes) for one in made] == [(12, 4096), (16, 4096), (20, 4096)]


@pytest.mark.parametrize(("limit", "code"), [("1e9", 0), ("0.5", 1)])
def test_the_command(limit: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--sizes", "4K", "--dtype", "float32", "--seconds", "0.01", "--limit", limit, "--json"]
    with pytest.raises(SystemExit) as ended:
        alignments.app(words)
    document = json.loads(capsys.readouterr().out)
    assert (ended.value.code, document["schema"]) == (code, alignments.SCHEMA)
    assert [row["operation"] for row in document["rows"]] == ["copy", "sum float32"]
    assert all(row["ratio"] >= 1 and row["pairs"] >= 20 for row in document["rows"])
