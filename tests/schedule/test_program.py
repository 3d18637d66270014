"""The language: what statements record, and the errors for invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from pycollective.errors import ProgramError
from pycollective.schedule import Program, compile_program


def recorded(p: Program) -> list[tuple[int, tuple[int, ...], tuple[int, ...], int | None]]:
    return [(s.chunk, s.destinations, s.sources, s.at) for s in p.statements]


def test_statements_are_recorded_with_ranks_modulo_size() -> None:
    p = Program("allreduce", 4)
    for c in p.chunks(2):
        p[5, c] += p[-1, c]
        p[2, c] = p[6, c]
    p[p.ranks, 0] = p.sum((p[q, 0] for q in reversed(p.ranks)), at=9)
    p[(1, 5, 3), 1] = p.copy(p[0, 1], at=0)
    p[1, 0] += p.sum(p[q, 0] for q in (2, 3))
    p[[], 0] = p[0, 0]  # without a destination there is no statement
    assert recorded(p) == [
        (0, (1,), (1, 3), None),
        (0, (2,), (2,), None),
        (1, (1,), (1, 3), None),
        (1, (2,), (2,), None),
        (0, (0, 1, 2, 3), (3, 2, 1, 0), 1),
        (1, (1, 3), (0,), 0),
        (0, (1,), (1, 2, 3), None),
    ]


def test_integers_of_numpy_are_integers() -> None:
    np = pytest.importorskip("numpy")
    p = Program("allreduce", 4)
    for c in p.chunks(np.int64(1)):
        p[np.arange(5), np.int8(c)] = p.sum((p[q, np.int64(0)] for q in np.arange(2)), at=np.int16(7))
    assert recorded(p) == [(0, (0, 1, 2, 3), (0, 1), 3)]


def test_blocks_number_the_pairs() -> None:
    p = Program("alltoall", 3)
    assert sorted(p.block(s, d) for s in p.ranks for d in p.ranks) == list(p.chunks(9))
    assert p.block(2, 1) == 7


@pytest.mark.parametrize(
    ("collective", "chunks"),
    [(name, 4) for name in ("reduce_scatter", "allgather", "gather", "scatter")] + [("alltoall", 16)],
)
def test_split_collectives_prescribe_their_chunks(collective: str, chunks: int) -> None:
    assert Program(collective, 4, 0).chunks(chunks) == range(chunks)
    with pytest.raises(ProgramError, match=f"{collective} on 4 ranks has {chunks} chunks"):
        Program(collective, 4, 0).chunks(chunks + 1)


WRONG = [
    ("before p.chunks", "p[0, 0]"),
    ("at least one chunk", "p.chunks(0)"),
    ("at most 4194304 chunks", "p.chunks(1 << 40)"),
    ("already cut in 2", "p.chunks(2)\np.chunks(3)"),
    ("chunk 2 of 2", "p.chunks(2)\np[0, 2]"),
    ("chunk -1 of 2", "p.chunks(2)\nx = p[0, 0]\np[0, -1] = x"),
    ("a statement on chunk 1 assigns", "p.chunks(2)\np[0, 1] = p[1, 0]"),
    ("a statement on chunk 0 assigns", "p.chunks(1)\np[0, 0] = 3"),
    ("places of one chunk only", "p.chunks(2)\np[0, 0] = p.sum([p[0, 0], p[1, 1]])"),
    ("places of one chunk only", "p.chunks(1)\np[0, 0] = p.sum([p.sum([p[0, 0], p[1, 0]])])"),
    ("p.sum() of nothing", "p.chunks(1)\np[0, 0] = p.sum(p[q, 0] for q in ())"),
    ("+= takes p[r, 0]", "p.chunks(2)\np[0, 0] += p[0, 1]"),
    ("+= takes p[r, 0]", "p.chunks(2)\np[0, 0] += 3"),
    ("one rank is read at a time", "p.chunks(1)\np[0, 0] = p[(0, 1), 0]"),
    ("one rank is read at a time", "p.chunks(1)\np[p.ranks, 0] += p[0, 0]"),
    ("p[0, 0] + p[1, 0]: write p.sum(", "p.chunks(1)\np[0, 0] = p[0, 0] + p[1, 0]"),
    ("write p.sum(p[q, c] for", "p.chunks(1)\np[0, 0] = sum(p[q, 0] for q in p.ranks)"),
    ("write p.sum(p[q, c] for", "p.chunks(1)\np[0, 0] = p.sum(p[1, 0])"),
    ("0 is not a place p[r, c]", "p.chunks(1)\np[0, 0] = p.sum(p.ranks)"),
    ("3 is not a place p[r, c]", "p.chunks(1)\np[0, 0] = p.copy(3)"),
    ("p.chunks(1.0): the number of chunks is an integer", "p.chunks(p.size / 2)"),
    ("p[0, 0.0]: a place is p[rank, chunk]", "p.chunks(1)\np[0, 0.0] = p[1, 0]"),
    ("p[0, 0.0]: a place is p[rank, chunk]", "p.chunks(1)\nx = p[0, 0.0]"),
    ("p[0]: a place is p[rank, chunk]", "p.chunks(1)\np[0] = p[1, 0]"),
    ("p[0, 0, 0]: a place is p[rank, chunk]", "p.chunks(1)\np[0, 0, 0] = p[1, 0]"),
    ("p[1.0, 0]: ranks are integers", "p.chunks(1)\np[p.size / 2, 0] = p[0, 0]"),
    ("p['all', 0]: ranks are integers", "p.chunks(1)\np['all', 0] = p[0, 0]"),
    ("p[slice(None, None, None), 0]: ranks are", "p.chunks(1)\np[:, 0] = p[0, 0]"),
    ("at=0.5: a statement is executed by one rank", "p.chunks(1)\np[0, 0] = p.sum((p[0, 0], p[1, 0]), at=0.5)"),
    ("at=(0, 1): a statement is executed by one rank", "p.chunks(1)\np[0, 0] = p.copy(p[1, 0], at=(0, 1))"),
]


@pytest.mark.parametrize(("words", "code"), WRONG)
def test_a_broken_rule_names_the_line(words: str, code: str) -> None:
    with pytest.raises(ProgramError) as caught:
        exec(compile(code, "mine.py", "exec"), {"p": Program("allreduce", 2)})
    assert str(caught.value).startswith(f"mine.py:{1 + code.count(chr(10))}: ")
    assert words in str(caught.value)


def test_an_uninitialized_read_names_statement_and_line() -> None:
    p = Program("broadcast", 3, 1)
    p.chunks(1)
    p[2, 0] = p[0, 0]  # the mistake
    with pytest.raises(ProgramError, match=r"p\[0, 0\] is read but holds nothing yet .*root 1") as caught:
        compile_program(p)
    line = int(str(caught.value).split(":")[1])
    assert Path(__file__).read_text().splitlines()[line - 1].endswith("# the mistake")
