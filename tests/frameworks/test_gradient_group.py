"""The gradients of a step in one call: results, what differs between ranks, and calls that do not wait."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import processes
import pytest

from pycollective.errors import MismatchError
from pycollective.hvd import arguments, basics, handles
from pycollective.hvd.exceptions import HorovodInternalError
from pycollective.hvd.gradients.gradient_group import GradientGroup

ROWS = {"b": ((3,), "float32"), "a": ((2, 2), "float64"), "c": ((0,), "float32")}


def _run(n: int, body: Any, *arguments: Any) -> list[Any]:
    return processes.run(n, _enter, body.__name__, *arguments)


def _enter(comm: Any, link: Any, name: str, *arguments: Any) -> Any:
    basics.init(comm)
    value = globals()[name](basics.rank(), basics.size(), *arguments)
    handles.shutdown()
    return value


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


@pytest.mark.parametrize("n", [1, 2, 3])
def test_gradients_are_reduced_with_and_without_waiting(n: int) -> None:
    _run(n, _reduced)


def _reduced(rank: int, size: int) -> None:
    for groups in [(), (("a", "c"),)]:
        group = GradientGroup(ROWS, arguments.Average, 4.0, groups=groups)
        for _ in range(3):
            inputs, outputs = _gradients(rank), _gradients(-1)
            group.reduce(inputs, outputs)
            assert all((out == (size + 1) / 2).all() for out in outputs)
            assert _wait_for(group, inputs, inputs) is None
            assert all((out == (size + 1) / 2).all() for out in inputs)


def test_a_gradient_that_only_some_ranks_have() -> None:
    for text in _run(3, _missing):
        assert "'a' is dense on ranks 0, 2, missing on rank 1" in text


def _missing(rank: int, size: int) -> str:
    group = GradientGroup(ROWS, arguments.Sum)
    inputs = _gradients(rank)
    lacking = [inputs[0], None if rank == 1 else inputs[1], inputs[2]]
    with pytest.raises(MismatchError) as caught:
        group.reduce(lacking, inputs)
    error = _wait_for(group, lacking, inputs)
    assert isinstance(error, MismatchError) and str(error) == str(caught.value)
    none_anywhere = [inputs[0], None, inputs[2]]
    group.reduce(none_anywhere, inputs)  # continues, and leaves that one alone
    assert (inputs[0] == 6).all() and (inputs[1] == rank + 1).all()
    return str(error)


def test_a_gradient_that_is_stale_on_some_ranks() -> None:
    for text in _run(2, _stale):
        assert "'a' is dense on rank 0, stale on rank 1" in text


def _stale(rank: int, size: int) -> str:
    group = GradientGroup(ROWS, arguments.Sum)
    inputs = _gradients(rank)
    with pytest.raises(MismatchError) as caught:
        group.reduce(inputs, inputs, [False, rank == 1, False])
    group.reduce(inputs, inputs, [False, True, False])  # on all ranks: it is reduced all the same
    assert all((x == 3).all() for x in inputs)
    return str(caught.value)


@pytest.mark.parametrize("change", ["shape", "more"])
def test_variables_that_differ(change: str) -> None:
    first, other = _run(2, _different, change)
    assert first == other and ("'a' as float64 of shape (5,)" if change == "shape" else "has a 'd' too") in first


def _different(rank: int, size: int, change: str) -> str:
    changed = {**ROWS, "a": ((5,), "float64")} if change == "shape" else {**ROWS, "d": ((1,), "float32")}
    rows = changed if rank else ROWS
    group = GradientGroup(rows)
    inputs = [np.ones(shape, dtype) for shape, dtype in rows.values()]
    with pytest.raises(MismatchError) as caught:
        group.reduce(inputs, inputs)
    error = _wait_for(group, inputs, inputs)
    assert isinstance(error, MismatchError) and str(error) == str(caught.value)
    return str(error)


def test_a_rank_that_leaves() -> None:
    _run(2, _left)


def _left(rank: int, size: int) -> None:
    group = GradientGroup(ROWS)
    if rank == 0:
        inputs = _gradients(rank)
        assert isinstance(_wait_for(group, inputs, inputs), HorovodInternalError)
