"""Collectives of Python objects."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from calls import on_each_rank

import pycollective as pc
from pycollective.comm import objects

VALUE = {"text": "é", "numbers": [1, 2.5], "none": None, "long": b"x" * 100_000}


@pytest.mark.parametrize("hosts", [(0,), (0, 0), (0, 0, 0), (0, 0, 1, 1)], ids=str)
@on_each_rank()
def test_each_rank_gets_its_object(comm: pc.Communicator, hosts: tuple[int, ...]) -> None:
    me, n = comm.rank, comm.size
    root = n - 1
    got = comm.broadcast_object(VALUE if me == root else None, root)
    assert got == VALUE and (got is VALUE) == (me == root)
    own = ["own"] * me
    all_of_them = comm.allgather_object(own)
    assert all_of_them == [["own"] * rank for rank in range(n)] and all_of_them[me] is not own
    assert comm.gather_object((me, VALUE), root) == ([(r, VALUE) for r in range(n)] if me == root else None)
    assert comm.scatter_object([(r, VALUE) for r in range(n)] if me == root else None, root) == (me, VALUE)
    assert comm.scatter_object(iter(range(n)), 0) == me  # read on the root only


class Awkward(Exception):
    """Cannot be recreated from its message."""

    def __init__(self, number: int, colour: str) -> None:
        super().__init__(f"{number} {colour} elephants")


class Refuses:
    """Raises when it is pickled."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error


FORMS: dict[str, Callable[[pc.Communicator, Any], Any]] = {
    "broadcast": lambda comm, bad: comm.broadcast_object(bad if comm.rank == 1 else None, 1),
    "allgather": lambda comm, bad: comm.allgather_object(bad if comm.rank == 1 else 0),
    "gather": lambda comm, bad: comm.gather_object(bad if comm.rank == 1 else 0),
    "scatter": lambda comm, bad: comm.scatter_object([0, 0, bad] if comm.rank == 1 else None, 1),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("bad", "error", "elsewhere", "text"),
    [
        (lambda: None, TypeError, TypeError, "pickle refuses"),
        (Refuses(KeyError("key")), KeyError, KeyError, "key"),
        (Refuses(Awkward(3, "pink")), Awkward, pc.Error, "3 pink elephants"),
    ],
)
@on_each_rank(3)
def test_an_unpicklable_object_is_an_error_on_every_rank(
    comm: pc.Communicator, form: str, bad: Any, error: type[Exception], elsewhere: type[Exception], text: str
) -> None:
    with pytest.raises(error if comm.rank == 1 else elsewhere, match=text) as caught:
        FORMS[form](comm, bad)
    if comm.rank != 1 and hasattr(caught.value, "__notes__"):
        assert "raised on rank 1" in caught.value.__notes__
    assert comm.allreduce(1) == 3  # the communicator remains usable


@pytest.mark.parametrize("form", FORMS)
def test_a_pickle_that_is_too_long_is_an_error_on_every_rank(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "MOST_BYTES", 1000)

    def body(comm: pc.Communicator) -> None:
        with pytest.raises(ValueError, match="bytes, more than 1000"):
            FORMS[form](comm, b"x" * 2000)

    pc.local_world(3).run(body)


@pytest.mark.parametrize("values", [3, [1], [1, 2, 3], "ab", None])
@on_each_rank(2)
def test_a_scatter_needs_one_object_for_each_rank(comm: pc.Communicator, values: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="values must be"):
        comm.scatter_object(values if comm.rank == 0 else None)


@pytest.mark.parametrize("root", [-1, 2, 0.5, "0", True])
@on_each_rank(2)
def test_a_root_that_is_not_a_rank_is_refused(comm: pc.Communicator, root: Any) -> None:
    for call in (comm.broadcast_object, comm.gather_object, comm.scatter_object):
        with pytest.raises((TypeError, ValueError), match="root must be"):
            call([1, 2], root)


@on_each_rank(2)
def test_ranks_in_different_calls_get_a_mismatch(comm: pc.Communicator) -> None:
    """Both calls begin with the same small allgather."""
    with pytest.raises(pc.MismatchError, match="gather_object to 1"):
        if comm.rank == 0:
            comm.allgather_object(1)
        else:
            comm.gather_object(1, 1)


@on_each_rank(2)
def test_a_deadline(comm: pc.Communicator, event: threading.Event) -> None:
    if comm.rank == 1:
        assert event.wait(30)
        return
    with pytest.raises(pc.TimeoutError, match="allgather_object") as caught:
        comm.allgather_object(1, timeout=0.1, name="late")
    assert not hasattr(caught.value, "__notes__") or "'late'" in caught.value.__notes__[0]
    event.set()


@on_each_rank(2)
def test_arrays_in_objects_are_copies(comm: pc.Communicator) -> None:
    own = np.zeros(3)
    for received in comm.allgather_object(own):
        received += 1
        assert received.tolist() == [1, 1, 1]
    assert not own.any()
