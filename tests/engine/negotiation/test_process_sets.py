"""Several engines at once: one for all ranks, others for subsets, with the same names."""

from __future__ import annotations

import random
from multiprocessing.connection import Connection

import numpy as np
import pytest
from calls import on_each_rank
from processes import run

from engine.operations import SECONDS, ones, play, random_phases
from pycollective import Communicator, MismatchError, local_world
from pycollective.engine import Engine, Item


def side_by_side(comm: Communicator, link: Connection | None = None) -> None:
    """The world, halves and overlapping pairs, every engine with an operation of the same name in flight."""
    size, rank = comm.size, comm.rank
    parts = {"world": comm, "half": comm.split(rank % 2)}
    parts["but the last"] = comm.group(range(size - 1)) if size > 1 else None
    parts["first and last"] = comm.group(sorted({0, size - 1}))
    engines = {name: Engine(part) for name, part in parts.items() if part is not None}
    choice = random.Random(rank)
    for turn in range(40):
        order = list(engines)
        choice.shuffle(order)
        x = np.full(100 + turn, rank + 1)
        works = {name: engines[name].submit([Item("allreduce", "grad", x)])[0] for name in order}
        choice.shuffle(order)
        for name in order:
            ranks = engines[name].comm.world_ranks
            assert works[name].wait(SECONDS).tolist() == [sum(r + 1 for r in ranks)] * len(x), name
    for engine in engines.values():
        engine.close()


@pytest.mark.parametrize("n", [1, 3, 5])
def test_threads(n: int) -> None:
    local_world(n).run(side_by_side)


@pytest.mark.parametrize("n", [2, 4])
def test_processes(n: int) -> None:
    run(n, side_by_side)


@on_each_rank(4)
def test_random_operations_in_two_at_once(comm: Communicator) -> None:
    """The work of one engine does not delay or mix with another's."""
    whole, part = Engine(comm), Engine(comm.split(comm.rank % 2))
    for seed in range(4):
        play(whole, random_phases(random.Random(seed), 2, 15), seed)
        play(part, random_phases(random.Random(seed + comm.rank % 2 * 10), 2, 15), seed)
    part.close()
    whole.close()


@on_each_rank(2)
def test_a_mismatch_in_one_does_not_reach_another(comm: Communicator) -> None:
    whole, other = Engine(comm), Engine(comm)
    bad = whole.submit([ones("a", 3 + comm.rank)])[0]
    good = other.submit([ones("a")])[0]
    with pytest.raises(MismatchError):
        bad.wait(SECONDS)
    assert good.wait(SECONDS).tolist() == [2] * 3
    assert whole.run([ones("a")])[0].tolist() == [2] * 3
    other.close()
    whole.close()
