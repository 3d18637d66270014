"""Broadcast of Python objects, and work that only the root does."""

from __future__ import annotations

import pytest
from calls import on_each_rank

import pycollective as pc
from pycollective.comm.objects import on_root
from pycollective.optim import broadcast_object


@pytest.mark.parametrize("n", [1, 2, 4])
@on_each_rank()
def test_every_rank_gets_the_roots_object(comm):
    root = comm.size - 1
    value = {"text": "é", "numbers": [1, 2.5], "none": None, "long": b"x" * 100_000}
    got = broadcast_object(value if comm.rank == root else comm.rank, root, comm)
    assert got == value and (got is value) == (comm.rank == root)


@on_each_rank(2)
def test_an_object_that_pickle_does_not_take_is_an_error_on_every_rank(comm):
    with pytest.raises(Exception, match="lambda"):
        broadcast_object(lambda: None, comm=comm)
    return comm.allreduce(1)


class Awkward(Exception):
    """Cannot be unpickled."""

    def __init__(self, number, colour):
        super().__init__(f"{number} {colour} elephants")


@pytest.mark.parametrize(("failure", "elsewhere"), [(KeyError("k"), KeyError), (Awkward(3, "pink"), pc.Error)])
@on_each_rank(3)
def test_only_the_root_works_and_its_failure_is_raised_on_all_ranks(comm, failure, elsewhere):
    worked = []

    def work():
        worked.append(comm.rank)
        raise failure

    with pytest.raises(Exception) as caught:
        on_root(work, 1, comm)
    assert worked == [1] * (comm.rank == 1)
    assert isinstance(caught.value, type(failure) if comm.rank == 1 else elsewhere)
    assert str(failure) in str(caught.value)
