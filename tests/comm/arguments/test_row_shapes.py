"""Ranks whose arrays have equally many elements in rows of other shapes: an error if rows are cut or joined."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from calls import on_each_rank

from pycollective import Communicator, MismatchError, local_world

CALLS: dict[str, Callable[[Communicator, Any], Any]] = {
    "allgather": lambda comm, x: comm.allgather(x),
    "iallgather": lambda comm, x: comm.iallgather(x).result(20),
    "allgatherv": lambda comm, x: comm.allgatherv(x, [len(x)] * 2),
    "allgatherv, counts asked for": lambda comm, x: comm.allgatherv(x),
    "gather": lambda comm, x: comm.gather(x, 1),
    "scatter": lambda comm, x: comm.scatter(x, 0),
    "scatter, to out": lambda comm, x: comm.scatter(x if comm.rank == 0 else None, 0, np.empty_like(x[: len(x) // 2])),
    "reduce_scatter": lambda comm, x: comm.reduce_scatter(x),
    "alltoall": lambda comm, x: comm.alltoall(x),
}


@pytest.mark.parametrize("before", [False, True], ids=["first", "with plans made"])
@pytest.mark.parametrize("name", CALLS)
def test_rows_of_other_shapes(name: str, before: bool) -> None:
    """Also if both ranks have made a call with these shapes before: a plan is for one shape of rows."""
    shapes = [(12, 1), (4, 3)]

    def body(comm: Communicator) -> None:
        for shape in shapes * before:
            CALLS[name](comm, np.zeros(shape))
        CALLS[name](comm, np.zeros(shapes[comm.rank]))

    with pytest.raises(MismatchError) as raised:
        local_world(2).run(body)
    if "asked for" not in name:  # where the numbers of rows differ, too
        assert set(re.findall(r"rows of shape (\(\d,\))", str(raised.value))) == {"(1,)", "(3,)"}


def test_more_axes_and_flat_against_rows() -> None:
    for shapes in ([(2, 2, 3), (2, 3, 2)], [(6,), (2, 3)], [(2, 1, 3), (2, 3)]):
        with pytest.raises(MismatchError, match="rows of shape"):
            local_world(2).run(lambda comm, shapes=shapes: comm.allgather(np.zeros(shapes[comm.rank])))


@on_each_rank(2)
def test_elementwise_collectives_compare_only_the_count(comm: Communicator) -> None:
    """As in MPI; each rank's result has its own shape."""
    shape = [(2, 3), (3, 2)][comm.rank]
    x = np.arange(6.0).reshape(shape)
    for got in (comm.allreduce(x), comm.broadcast(x * 2, 1), comm.broadcast(x, 1, out=np.empty(6)) * 2):
        assert got.ravel().tolist() == [0, 2, 4, 6, 8, 10]
    assert comm.allreduce(x).shape == shape
    assert comm.allgather(np.float64(3) if comm.rank else np.ones(1)).tolist() == [1, 3]  # 0-d: a row
