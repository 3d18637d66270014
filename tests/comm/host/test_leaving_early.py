"""Small calls in which data goes one way: a rank that needs nothing of the others returns before they have called."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from calls import call, on_each_rank, place, sum_that
from speed import deadline

from pycollective import Communicator, MismatchError, TimeoutError, local_world

AHEAD = 8
ROOT = 1
GIVERS = {"broadcast": [ROOT], "scatter": [ROOT], "reduce": [0, 2], "gather": [0, 2], "scan": [0, 1], "exscan": [0, 1]}
"""The ranks that need nothing of the others."""


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


def broadcast(comm: Communicator, root: int = 0, topology: str = "direct") -> Any:
    return comm.broadcast(np.full(2, comm.rank), root, topology=topology)


DIFFERENT: dict[str, tuple[Callable[[Communicator], Any], str]] = {
    "two calls": (lambda comm: broadcast(comm) if comm.rank == 0 else comm.reduce(np.ones(2), 0), "reduce("),
    "numbers of steps": (
        lambda comm: comm.scatter(np.ones(8), 1) if comm.rank == 1 else comm.reduce(np.ones(2), 1),
        "scatter(",
    ),
    "roots of which neighbours know": (lambda comm: broadcast(comm, comm.rank // 2 * 2, "ring"), "root=2"),
}
"""Calls in which no rank, or only those who agree, look at each other; a word of the error."""


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("different", DIFFERENT)
@pytest.mark.parametrize("next_one", ["barrier", "allreduce", "nonblocking", "broadcast"])
@on_each_rank(4)
def test_calls_in_which_nobody_waits_are_compared_by_the_next_that_waits(
    comm: Communicator, next_one: str, different: str, before: int
) -> None:
    x, (act, word) = np.ones(2), DIFFERENT[different]
    for _ in range(before):
        broadcast(comm)
    comm.barrier()
    with pytest.raises(MismatchError, match=rf"call {before + 2} of .*{re.escape(word)}"):
        act(comm)
        if next_one == "barrier":
            comm.barrier()
        elif next_one == "allreduce":
            comm.allreduce(np.ones(5000))
        elif next_one == "nonblocking":
            comm.iallgather(x).result(deadline(20))
        else:
            assert broadcast(comm, 1)[0] == 1
            comm.barrier()


@pytest.mark.parametrize("topology", ["direct", "halving_doubling"])
@on_each_rank(2)
def test_no_rank_leaves_while_its_window_is_read(comm: Communicator, topology: str, event: threading.Event) -> None:
    # Rank 0 adds slowly: a rank that left early would change its array meanwhile.
    op, kept = sum_that(lambda: comm.rank == 0 and event.wait(0.2))
    x = place(comm, np.full(750, comm.rank + 1.0), "window")
    total = comm.reduce(x, 0, op=op, topology=topology)
    x.fill(-1)
    if comm.rank == 1:
        event.set()
    assert total is None if comm.rank else (total == 3).all()
    del kept


@on_each_rank(2)
def test_a_rank_that_leaves_after_its_part_is_not_missed(comm: Communicator, event: threading.Event) -> None:
    assert comm.rank == 0 or event.wait(deadline(20))
    for number in range(AHEAD):
        assert comm.broadcast(np.full(3, number * (comm.rank == 0)), root=0)[0] == number
    if comm.rank == 0:
        comm.free()
        event.set()
