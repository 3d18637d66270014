"""Random topologies on the real executor: programs that the verifier accepts give the sum, those it refuses do not.

Contributions are powers of a base large enough that sums never carry, so the result shows how often each was added.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seeds import examples

import pycollective
from pycollective import Communicator
from pycollective.errors import VerificationError
from pycollective.schedule import Placement, Program, compile_program, topology, verify
from pycollective.schedule.verifier import verifier

BASE = 1 << 12  # more than the contributions that the longest program can accumulate
COUNT = 5000  # elements: above what is always staged

Line = tuple[str, int, int, int]
"""A statement: "add" or "copy", the rank, the chunk, and the rank that it comes from."""


@st.composite
def allreduces(draw: st.DrawFn) -> tuple[int, int, list[Line]]:
    """(ranks, chunks, lines): a correct allreduce of each chunk, then possibly a few wrong lines."""
    size, chunks = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    lines: list[Line] = []
    for c in range(chunks):
        middle, order = draw(st.integers(0, size - 1)), draw(st.permutations(range(size)))
        lines += [("add", middle, c, q) for q in order if q != middle]
        lines += [("copy", r, c, middle) for r in order if r != middle]
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        at = draw(st.integers(0, len(lines) - 1))
        kind, rank, c, source = lines[at]
        change = draw(st.sampled_from(["drop", "repeat", "source", "kind"]))
        if change == "drop" and len(lines) > 1:
            del lines[at]
        elif change == "repeat":
            lines.insert(at, lines[at])
        elif change == "source":
            lines[at] = (kind, rank, c, draw(st.integers(0, size - 1)))
        else:
            lines[at] = ("copy" if kind == "add" else "add", rank, c, source)
    return size, chunks, lines


def write(p: Program, chunks: int, lines: list[Line]) -> None:
    p.chunks(chunks)
    for kind, rank, c, source in lines:
        if kind == "add":
            p[rank, c] += p[source, c]
        else:
            p[rank, c] = p[source, c]


def accepted(size: int, chunks: int, lines: list[Line], placement: Placement) -> bool:
    program = Program("allreduce", size)
    write(program, chunks, lines)
    try:
        verify(compile_program(program, placement))
    except VerificationError:
        return False
    return True


def gives_the_sum(size: int, chunks: int, lines: list[Line], placement: Placement) -> bool:
    """Whether every element of every rank is the sum, with threads as ranks."""

    @topology("core_test_random", replace=True)
    @dataclass(frozen=True)
    class Random:
        def allreduce(self, p: Program) -> None:
            write(p, chunks, lines)

    wanted = sum(BASE**r for r in range(size))

    def body(comm: Communicator) -> bool:
        mine = BASE**comm.rank
        x = np.full(COUNT, mine) if placement is Placement.STAGED else comm.empty(COUNT, np.int64)
        x[:] = mine
        out = x if placement is Placement.INPLACE else np.zeros(COUNT, np.int64)
        comm.allreduce(x, out=out, topology=Random())
        return bool((out == wanted).all())

    return all(pycollective.local_world(size).run(body))


@pytest.mark.fuzz
def test_the_verdict_agrees_with_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "verify", lambda *_: None)  # so that refused programs run at all
    seen: Counter[bool] = Counter()

    @examples(60)
    @given(program=allreduces(), placement=st.sampled_from([Placement.STAGED, Placement.WINDOW_IN, Placement.INPLACE]))
    def compare(program: tuple[int, int, list[Line]], placement: Placement) -> None:
        verdict = accepted(*program, placement)
        seen[verdict] += 1
        assert gives_the_sum(*program, placement) == verdict

    compare()
    assert min(seen[True], seen[False]) > 5, "both verdicts must have occurred"
