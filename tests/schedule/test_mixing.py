"""Weighted sums along graphs: their evaluation, the language's p.mix, and what the verifier proves of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seeds import examples

from pycollective import ProgramError, VerificationError
from pycollective.graphs import ring
from pycollective.schedule import Placement, Program, compile_program, verify
from pycollective.schedule.compiler.mixtures import mixtures
from pycollective.schedule.compiler.steps import describe_step
from pycollective.schedule.mixing import MixingMatrix, evaluate

from .test_verifier import with_step

PLACEMENTS = pytest.mark.parametrize("placement", Placement)


@st.composite
def matrices(draw: Any, most: int = 6) -> list[dict[int, float]]:
    """A row for each rank: any sources with its own, weights that sum to 1."""
    size = draw(st.integers(1, most))
    rows = []
    for rank in range(size):
        sources = draw(st.sets(st.integers(0, size - 1))) | {rank}
        parts = {source: draw(st.integers(-3, 9)) for source in sources}
        parts[rank] += 10 - sum(parts.values())
        rows.append({source: part / 10 for source, part in parts.items()})
    return rows


def dense(rows: list[dict[int, float]] | tuple[Mapping[int, float], ...]) -> np.ndarray[Any, Any]:
    made = np.zeros((len(rows), len(rows)))
    for rank, row in enumerate(rows):
        for source, weight in row.items():
            made[rank, source] = weight
    return made


@PLACEMENTS
@examples(40)
@given(rows=matrices())
def test_every_matrix_has_a_correct_schedule(placement: Placement, rows: list[dict[int, float]]) -> None:
    schedule = evaluate(lambda rank, size, step: rows[rank], len(rows), 0).schedule(placement)
    verify(schedule)
    assert np.array_equal(dense(schedule.mixtures), dense(rows))


@PLACEMENTS
@examples(30)
@given(rows=matrices(4), chunks=st.integers(1, 2))
def test_two_steps_multiply_the_matrices(placement: Placement, rows: list[dict[int, float]], chunks: int) -> None:
    """All of a step read the values before it; the second begins where a place is written again."""
    p = Program("mix", len(rows))
    for _ in range(2):
        for c in p.chunks(chunks):
            for rank, row in enumerate(rows):
                p[rank, c] = p.mix(row)
    schedule = compile_program(p, placement)
    verify(schedule)
    found = dense(mixtures(p)[::chunks])
    assert np.allclose(found, dense(rows) @ dense(rows), rtol=0, atol=1e-12)


@examples(60)
@given(rows=matrices(), placement=st.sampled_from(Placement))
def test_no_group_of_ranks_checks_only_itself(rows: list[dict[int, float]], placement: Placement) -> None:
    """From each rank, its waits lead to every other: ranks in different calls are detected."""
    schedule = evaluate(lambda rank, size, step: rows[rank], len(rows), 0).schedule(placement)
    checks = [
        {wait.peer for waits in (mine.exit_waits, *(step.waits for step in mine.steps)) for wait in waits}
        for mine in schedule.ranks
    ]
    for first in range(len(rows)):
        reached = {first}
        for _ in rows:
            reached |= {peer for rank in reached for peer in checks[rank]}
        assert reached == set(range(len(rows)))


def test_the_verifier_rejects_what_is_not_the_mixture() -> None:
    schedule = evaluate(ring, 4, 0).schedule()
    verify(schedule)
    last = len(schedule.ranks[0].steps) - 1
    sources = schedule.ranks[0].steps[last].sources
    with pytest.raises(VerificationError, match=r"rank 0, chunk 0.*the result is .* instead of 0.333333 x\[0\]"):
        verify(with_step(schedule, 0, last, weights=(0.5, 0.25, 0.25)))
    with pytest.raises(VerificationError, match="the result is"):
        verify(with_step(schedule, 0, last, sources=(sources[0], *sources[:2])))
    for count in (0, 2, 4):
        with pytest.raises(VerificationError, match=f"3 sources have {count} weights"):
            verify(with_step(schedule, 0, last, weights=(0.25,) * count))


def test_schedules_show_their_weights() -> None:
    step = evaluate(lambda rank, size, step: {0: 0.25, 1: 0.75}, 2, 0).schedule().ranks[0].steps[-1]
    assert describe_step(step) == "chunk 0: out[0] = 0.25 in[0] + 0.75 scratch[1] cell 0"


def test_the_language_takes_mix_in_programs_of_mix_only() -> None:
    p = Program("allreduce", 2)
    p.chunks(1)
    with pytest.raises(ProgramError, match=r"test_mixing.py:\d+: p.mix\(\) is for programs of mix, not of allreduce"):
        p[0, 0] = p.mix({0: 1.0})
    p = Program("mix", 3)
    p.chunks(1)
    with pytest.raises(ProgramError, match=r"a program of mix adds by p.mix\(\)"):
        p[0, 0] = p.sum(p[q, 0] for q in p.ranks)
    with pytest.raises(ProgramError, match=r"p.mix\(\) of nothing"):
        p[0, 0] = p.mix({})
    for wrong in ([1, 2], {"a": 1.0}, {0: "b"}, {0.5: 1.0}):
        with pytest.raises(ProgramError, match="a mapping from ranks, integers, to weights"):
            p[0, 0] = p.mix(wrong)  # type: ignore[arg-type]
    p[0, 0] = p.mix({-1: 0.25, 2: 0.25, 0: 0.5})  # ranks are taken modulo the size
    assert (p.statements[0].sources, p.statements[0].weights) == ((0, 2), (0.5, 0.5))


@pytest.mark.parametrize(
    ("row", "error", "text"),
    [
        ({0: 0.5, 1: 0.4}, ValueError, "the weights sum to 0.9 instead of 1; pass normalised=False"),
        ({1: 1.0}, ValueError, "no entry of its own: {1: 1.0}; write 0: 0.0"),
        ({0: 0.5, 2: 0.5}, ValueError, "source 2 is not a rank"),
        ({0: 0.5, -1: 0.5}, ValueError, "source -1 is not a rank"),
        ({0: math.nan, 1: 0.5}, ValueError, "the weight of rank 0 is nan"),
        ({0: math.inf, 1: -math.inf}, ValueError, "the weight of rank 0 is inf"),
        ({0: "a"}, TypeError, "{source: weight} is needed"),
        ([0.5, 0.5], TypeError, "{source: weight} is needed"),
        ({0.5: 1.0}, TypeError, "{source: weight} is needed"),
    ],
)
def test_a_wrong_row_is_named(row: Any, error: type[Exception], text: str) -> None:
    def graph(rank: int, size: int, step: int) -> Any:
        return row

    with pytest.raises(error, match="graph graph: rank 0 of 2: ") as caught:
        evaluate(graph, 2, 0)
    assert text in str(caught.value)


def test_weights_need_not_sum_to_one_if_so_said() -> None:
    assert evaluate(lambda rank, size, step: {rank: 2.0}, 2, 0, normalised=False).rows == (((0, 2.0),), ((1, 2.0),))


def test_equal_rows_are_one_matrix() -> None:
    """Plans are remembered by it."""
    assert evaluate(ring, 5, 0) is evaluate(ring, 5, 3)
    other = evaluate(lambda rank, size, step: ring(rank, size, step), 5, 0)
    assert other.digest == evaluate(ring, 5, 0).digest
    less = MixingMatrix((*other.rows[:-1], ((4, 1.0),)), other.name)
    assert less.digest != other.digest and less.label != other.label
