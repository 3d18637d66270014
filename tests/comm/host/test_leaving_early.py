"""Small calls with a root: a rank that needs nothing of the others returns before they have called."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from calls import call, on_each_rank
from speed import deadline

from pycollective import Communicator, MismatchError, TimeoutError, local_world

AHEAD = 8
ROOT = 1
GIVERS = {"broadcast": [ROOT], "scatter": [ROOT], "reduce": [0, 2], "gather": [0, 2]}
"""The ranks that give, and get nothing from others."""


def results(comm: Communicator, name: str, count: int, after: Callable[[int], object]) -> list[Any]:
    """Those of several calls; what is done after each of them is given its number."""
    found = []
    for number in range(3 * AHEAD):
        x = np.arange(3 * count, dtype=np.float32) + 10 * number + comm.rank
        found.append(call(comm, name, x, ROOT))
        x[:] = np.nan  # what the others get is a copy
        after(number)
    return found


@pytest.mark.parametrize("name", GIVERS)
@pytest.mark.parametrize("count", [1, 4, 300])
def test_eight_calls_return_before_the_others_have_called(name: str, count: int) -> None:
    returned = [threading.Event() for _ in range(3)]

    def early(comm: Communicator) -> list[Any]:
        if comm.rank not in GIVERS[name]:
            assert all(returned[giver].wait(deadline(20)) for giver in GIVERS[name])
        return results(comm, name, count, lambda number: number == AHEAD - 1 and returned[comm.rank].set())

    in_step = local_world(3).run(lambda comm: results(comm, name, count, lambda _: comm.barrier()))
    for got, right in zip(local_world(3).run(early), in_step, strict=True):
        for one, other in zip(got, right, strict=True):
            np.testing.assert_array_equal(one, other)


@on_each_rank(3)
def test_the_ninth_waits(comm: Communicator) -> None:
    other = comm.dup()
    if comm.rank == 0:
        for _ in range(AHEAD):
            comm.broadcast(np.ones(2), root=0, timeout=0.1)
        with pytest.raises(
            TimeoutError, match=r"broadcast.*, call \d+ .*: not entered within 0.1 s by rank 1, rank 2$"
        ):
            comm.broadcast(np.ones(2), root=0, timeout=0.1)
    other.barrier()


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("settling", ["barrier", "allreduce", "nonblocking"])
@on_each_rank(2)
def test_calls_in_which_nobody_waits_are_compared_by_the_next_that_waits(
    comm: Communicator, settling: str, before: int
) -> None:
    x = np.ones(2)
    for _ in range(before):
        comm.broadcast(x, root=0)
    comm.broadcast(x, root=0) if comm.rank == 0 else comm.reduce(x, root=0)
    with pytest.raises(MismatchError, match=rf"call {before + 1} of .*(broadcast\(.*reduce\(|reduce\(.*broadcast\()"):
        if settling == "barrier":
            comm.barrier()
        elif settling == "allreduce":
            comm.allreduce(np.ones(5000))
        else:
            comm.iallgather(x).result(deadline(20))


def test_a_rank_that_leaves_after_its_part_is_not_missed() -> None:
    left = threading.Event()

    def body(comm: Communicator) -> list[Any]:
        assert comm.rank == 0 or left.wait(deadline(20))
        got = [comm.broadcast(np.full(3, number * (comm.rank == 0)), root=0)[0] for number in range(AHEAD)]
        if comm.rank == 0:
            comm.free()
            left.set()
        return got

    assert local_world(2).run(body) == [[*range(AHEAD)]] * 2
