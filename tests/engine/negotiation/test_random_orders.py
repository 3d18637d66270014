"""Any operations, submitted in a different order and at a different pace on every rank."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import run
from reference import DTYPES, OPERATORS, takes
from seeds import examples

from engine.operations import FLOATS, SHAPES, Operation, on_engines, play, random_phases
from pycollective import Communicator
from pycollective.engine import Engine

TYPED = [(dtype, op) for dtype in DTYPES for op in OPERATORS if takes(op, dtype)]
SHARED = {
    "window": st.booleans(),
    "out": st.sampled_from(("new", "same", "other")),
    "priority": st.integers(-2, 2),
}
WITH_ROWS = [shape for shape in SHAPES if shape]


def built(collectives: tuple[str, ...], shapes: Any, **more: Any) -> Any:
    """Operations of these collectives, without numbers."""
    keywords = {"collective": st.sampled_from(collectives), "shape": st.sampled_from(shapes)}
    return st.fixed_dictionaries({**keywords, **SHARED, **more})


MOVING = built(("broadcast",), SHAPES, dtype=st.sampled_from(DTYPES), root=st.integers(0, 4))
GATHERING = built(("allgather", "alltoall"), WITH_ROWS, dtype=st.sampled_from(DTYPES))
REDUCING = st.one_of(
    st.builds(lambda a, t: {**a, "dtype": t[0], "op": t[1]}, built(names, shapes), st.sampled_from(TYPED))
    for names, shapes in ((("allreduce",), SHAPES), (("reducescatter",), WITH_ROWS))
)
SCALED = built(
    ("allreduce",), SHAPES, dtype=st.sampled_from(FLOATS), scale=st.sampled_from([0.5, 2.0]),
)  # fmt: skip
BARRIER = st.just({"collective": "barrier"})
GROUP = st.lists(st.one_of(REDUCING, REDUCING, MOVING, GATHERING, SCALED, BARRIER), min_size=1, max_size=6)
PHASE = st.lists(GROUP, min_size=1, max_size=6)


def numbered(phase: list[list[dict[str, Any]]]) -> list[list[Operation]]:
    """The operations with numbers, and thereby names."""
    number = iter(range(1000))
    return [[Operation(number=next(number), **one) for one in group] for group in phase]


@pytest.mark.fuzz
@examples(60)
@given(st.integers(1, 5), st.lists(PHASE, min_size=1, max_size=3), st.integers(0, 1000))
def test_threads(n: int, phases: list[list[list[dict[str, Any]]]], seed: int) -> None:
    named = [numbered(phase) for phase in phases]
    on_engines(n, lambda engine: play(engine, named, seed))


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_many_phases(n: int) -> None:
    phases = random_phases(n, phases=12, most=40)
    on_engines(n, lambda engine: play(engine, phases, n))


def play_it(comm: Communicator, link: Connection, seed: int) -> None:
    engine = Engine(comm)
    play(engine, random_phases(seed, phases=12, most=40), seed)
    engine.close()


@pytest.mark.parametrize(("n", "seed"), [(1, 11), (2, 12), (3, 13), (4, 14), (6, 15)])
def test_processes(n: int, seed: int) -> None:
    run(n, play_it, seed)
