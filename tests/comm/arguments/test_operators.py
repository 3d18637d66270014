"""User-defined operators, compiled by numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from calls import REDUCING, call, has, on_each_rank, on_ranks, place, reduced
from reference import IN_RANK_ORDER, INTEGERS, NARROW, TOPOLOGIES, contributions, numpy_type

import pycollective
from pycollective import Communicator, local_world

pytest.importorskip("numba")

COMPUTABLE = (*INTEGERS, "float32", "float64")


def largest_magnitude(a: Any, b: Any) -> Any:
    return a if abs(a) >= abs(b) else b


OPERATORS = {dtype: pycollective.op(largest_magnitude) for dtype in COMPUTABLE}


def later_unless_zero(a: Any, b: Any) -> Any:
    """Associative, not commutative: the result depends on the order."""
    return b if b != 0 else a


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("dtype", COMPUTABLE)
def test_every_type_and_topology(dtype: str, topology: str) -> None:
    operator = OPERATORS[dtype]
    cases = [
        (collective, count) for collective in REDUCING if has(topology, collective) for count in (0, 1, 7, 1000, 9000)
    ]
    data = {count: contributions(dtype, "sum", 3, count) for _, count in cases}
    for xs in data.values():
        np.abs(xs, out=xs)  # for equal magnitudes the result would depend on the order

    def part(collective: str, count: int) -> Callable[[Communicator], Any]:
        return lambda comm: call(comm, collective, data[count][comm.rank], 2, op=operator, topology=topology)

    for (collective, count), got in zip(cases, on_ranks(3, [part(*case) for case in cases]), strict=True):
        xs = data[count]
        whole = xs[0]
        for x in xs[1:]:
            whole = np.where(np.abs(whole) >= np.abs(x), whole, x)
        for rank, mine in enumerate(got):
            expected = reduced(collective, whole, 2, rank, 3)
            assert mine is None if expected is None else mine.tobytes() == expected.tobytes()


@pytest.mark.parametrize("topology", IN_RANK_ORDER)
@pytest.mark.parametrize("count", [10, 50000])
def test_the_order_is_that_of_the_ranks(count: int, topology: str) -> None:
    xs = np.random.default_rng(1).integers(0, 3, (4, count))
    expected = xs[0]
    for x in xs[1:]:
        expected = np.where(x != 0, x, expected)
    operator = pycollective.op(later_unless_zero)
    for got in local_world(4).run(lambda comm: comm.allreduce(xs[comm.rank], op=operator, topology=topology)):
        assert got.tolist() == expected.tolist()


EXCLUSIVE, PRODUCT = pycollective.op(lambda a, b: a != b), pycollective.op(lambda a, b: a * b % 7)


@on_each_rank(3)
def test_bool_and_windows_and_in_place(comm: Communicator) -> None:
    assert comm.allreduce(np.array([True, comm.rank == 1]), op=EXCLUSIVE).tolist() == [True, True]
    first = np.arange(5000, dtype=np.int32) % 7
    x = place(comm, first + np.int32(comm.rank), "window")
    comm.allreduce(x, out=x, op=PRODUCT)
    assert x.tolist() == (first * (first + 1) % 7 * (first + 2) % 7).tolist()


@on_each_rank(2)
def test_unaligned_elements(comm: Communicator) -> None:
    x = place(comm, np.full(3000, comm.rank + 0.5), "unaligned")
    assert comm.allreduce(x, op=OPERATORS["float64"]).tolist() == [1.5] * 3000


@pytest.mark.parametrize(
    ("function", "dtype", "reason"),
    [
        (lambda a, b: a / b, "int32", "returns float64 for two int32"),
        (lambda a, b: a > b, "float32", "returns bool"),
        (lambda a, b: a + b, "bool", "returns int64 for two bool"),
        (lambda a, b: (a, b), "int64", "returns UniTuple"),
        (lambda a, b: a.nothing + b, "float64", "does not compile for float64"),
        (lambda a, b: a & b, "float64", "does not compile for float64"),
        *((largest_magnitude, dtype, f"numba does not compute with {dtype}") for dtype in NARROW),
    ],
)
def test_functions_that_do_not_suit_the_type(function: Callable[[Any, Any], Any], dtype: str, reason: str) -> None:
    refused(np.ones(5, numpy_type(dtype)), pycollective.op(function), TypeError, reason)


@on_each_rank(2)
def refused(comm: Communicator, x: Any, operator: Any, error: type[Exception], reason: str, **options: Any) -> None:
    """The call raises before anything is sent: the communicator remains usable."""
    for collective in REDUCING:
        with pytest.raises(error, match=reason):
            call(comm, collective, x, op=operator, **options)
    comm.barrier()


def test_invalid_operators() -> None:
    with pytest.raises(TypeError, match="must take two elements; <lambda> takes 3"):
        pycollective.op(lambda a, b, c: a)  # type: ignore[arg-type,misc]
    with pytest.raises(TypeError, match="Python function of two elements"):
        pycollective.op(max)
    refused(np.ones(5), "sun", ValueError, "no operator is called 'sun'; did you mean sum")
    refused(np.ones(5), max, TypeError, "op must be sum, ")
    refused(np.ones(5), OPERATORS["float64"], TypeError, "takes no prescale or postscale", prescale=2.0)


def test_division_by_zero_inside_an_operator_does_not_stop_the_block() -> None:
    """NumPy's rule (0 for integers): an exception in compiled code would leave the rest of the block unreduced."""
    quotient = pycollective.op(lambda a, b: a // b if a > b else a + b)
    xs = np.array([[1, 9, 8, 5, 3]] + [[0, 3, 0, 7, 2]])
    for got in local_world(2).run(lambda comm: comm.allreduce(xs[comm.rank], op=quotient)):
        assert got.tolist() == [0, 3, 0, 12, 1]
