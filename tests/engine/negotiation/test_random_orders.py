"""Any operations, submitted in a different order and at a different pace on every rank."""

from __future__ import annotations

import random
from multiprocessing.connection import Connection

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from processes import run
from seeds import examples

from engine.negotiation.test_join import uneven
from engine.operations import on_engines, ones, play, random_phases
from pycollective import Communicator, MismatchError
from pycollective.engine import Engine, Item


@pytest.mark.fuzz
@examples(60)
@given(st.integers(1, 5), st.randoms(), st.integers(0, 1000))
def test_threads(n: int, choice: random.Random, seed: int) -> None:
    phases = random_phases(choice, phases=choice.randint(1, 3), most=20)
    note(str(phases))
    on_engines(n, lambda engine: play(engine, phases, seed))


def in_processes(comm: Communicator, link: Connection, seed: int) -> None:
    engine = Engine(comm)
    play(engine, random_phases(random.Random(seed), phases=12, most=40), seed)
    assert uneven(engine, comm.rank + 1) == comm.size - 1
    assert np.allclose(engine.run([Item("adasum", "orthogonal", np.eye(comm.size)[comm.rank])])[0], 1)
    if comm.size > 1:
        with pytest.raises(MismatchError, match="'odd'"):
            engine.run([ones("odd", 3 + (comm.rank == 0))])
    engine.close()


@pytest.mark.parametrize(("n", "seed"), [(1, 11), (2, 12), (3, 13), (4, 14), (6, 15)])
def test_processes(n: int, seed: int) -> None:
    """Also with what does not take part in `play`: joins, Adasum, and a mismatch."""
    run(n, in_processes, seed)
