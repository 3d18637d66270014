"""The gradients of a step in one call: results, what differs between ranks, and calls that do not wait."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import numpy as np
import processes
import pytest
from bodies import run_by

from pycollective.errors import MismatchError
from pycollective.hvd import arguments, basics, handles
from pycollective.hvd.exceptions import HorovodInternalError
from pycollective.hvd.gradients.gradient_group import GradientGroup

ROWS = {"b": ((3,), "float32"), "a": ((2, 2), "float64"), "c": ((0,), "float32")}


def on_ranks(*sizes: int) -> Any:
    """Makes a function of a communicator, on which the engine is initialized, a test: see bodies.run_by."""
    return run_by(lambda n, body, given: processes.run(n, _enter, processes._place(body), *given.values()), *sizes)


def _enter(comm: Any, link: Any, place: tuple[str, str], *arguments: Any) -> None:
    basics.init(comm)
    inspect.unwrap(processes._load(*place))(comm, *arguments)
    handles.shutdown()


def _gradients(rank: int) -> list[Any]:
    return [np.full(shape, rank + 1.0, dtype) for shape, dtype in ROWS.values()]


def _wait_for(group: GradientGroup, gradients: list[Any], outputs: list[Any]) -> BaseException | None:
    called, found = threading.Event(), []

    def done(error: BaseException | None) -> None:
        found.append(error)
        called.set()

    group.start(gradients, outputs, done)
    assert called.wait(20) and len(found) == 1
    return found[0]


def _refused(group: GradientGroup, gradients: list[Any], outputs: list[Any], text: str) -> str:
    """The error, which is the same with and without waiting."""
    with pytest.raises(MismatchError, match=text) as caught:
        group.reduce(gradients, outputs)
    error = _wait_for(group, gradients, outputs)
    assert isinstance(error, MismatchError) and str(error) == str(caught.value)
    return str(error)


@on_ranks(1, 2, 3)
def test_gradients_are_reduced_with_and_without_waiting(comm: Any) -> None:
    for groups in [(), (("a", "c"),)]:
        group = GradientGroup(ROWS, arguments.Average, 4.0, groups=groups)
        for _ in range(3):
            inputs, outputs = _gradients(comm.rank), _gradients(-1)
            group.reduce(inputs, outputs)
            assert _wait_for(group, inputs, inputs) is None
            assert all((out == (comm.size + 1) / 2).all() for out in (*outputs, *inputs))


@on_ranks(3)
def test_a_gradient_that_only_some_ranks_have(comm: Any) -> None:
    group, inputs = GradientGroup(ROWS, arguments.Sum), _gradients(comm.rank)
    lacking = [inputs[0], None if comm.rank == 1 else inputs[1], inputs[2]]
    _refused(group, lacking, inputs, "'a' is dense on ranks 0, 2, missing on rank 1")
    group.reduce([inputs[0], None, inputs[2]], inputs)  # which no rank has: continues, and leaves that one alone
    assert (inputs[0] == 6).all() and (inputs[1] == comm.rank + 1).all()


@on_ranks(2)
def test_a_gradient_that_is_stale_on_some_ranks(comm: Any) -> None:
    group, inputs = GradientGroup(ROWS, arguments.Sum), _gradients(comm.rank)
    with pytest.raises(MismatchError, match="'a' is dense on rank 0, stale on rank 1"):
        group.reduce(inputs, inputs, [False, comm.rank == 1, False])
    group.reduce(inputs, inputs, [False, True, False])  # on all ranks: it is reduced all the same
    assert all((x == 3).all() for x in inputs)


@on_ranks(2)
def test_variables_that_differ(comm: Any) -> None:
    changes = {r"'a' as float64 of shape \(5,\)": {"a": ((5,), "float64")}, "has a 'd' too": {"d": ((1,), "float32")}}
    for text, change in changes.items():
        rows = ROWS | change if comm.rank else ROWS
        inputs = [np.ones(shape, dtype) for shape, dtype in rows.values()]
        first, other = comm.allgather_object(_refused(GradientGroup(rows), inputs, inputs, text))
        assert first == other


@on_ranks(2)
def test_a_rank_that_leaves(comm: Any) -> None:
    group, inputs = GradientGroup(ROWS), _gradients(comm.rank)
    if comm.rank == 0:
        assert isinstance(_wait_for(group, inputs, inputs), HorovodInternalError)
