"""Every element type x operator x reducing collective x topology, at every number of ranks, small messages."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from calls import REDUCING, call, has, on_each_rank, on_ranks, reduced
from reference import (
    DTYPES,
    IN_RANK_ORDER,
    OPERATORS,
    RANKS,
    REALS,
    SMALL,
    TOPOLOGIES,
    Array,
    Reference,
    contributions,
    in_rank_order,
    numpy_type,
    reference,
    same_bits,
    takes,
)

from pycollective import Communicator, _core
from pycollective.schedule.language import registry


def test_the_lists_are_complete() -> None:
    separate = {"complex64", "complex128", "float8_e8m0fnu"}  # see test_complex.py and test_exponents.py
    assert set(DTYPES) | separate == set(_core.dtypes())
    assert set(OPERATORS) == {name for name, _ in _core.operators()}
    assert set(TOPOLOGIES) <= set(registry.names())
    for op in OPERATORS:
        for name in DTYPES:
            assert _core.takes(op, name) == takes(op, name), (op, name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", RANKS)
def test_reductions_match_the_reference(n: int, dtype: str) -> None:
    known = {}
    for op, count in itertools.product(OPERATORS, SMALL):
        if takes(op, dtype):
            xs = contributions(dtype, op, n, count)
            known[op, count] = xs, reference(dtype, op, xs), in_rank_order(dtype, op, xs) if dtype in REALS else None
    cases = [
        (topology, collective, op, count, (count + i) % n)
        for topology in TOPOLOGIES
        for i, (op, count) in enumerate(known)
        for collective in REDUCING
        if has(topology, collective)
    ]

    def part(topology: str, collective: str, op: str, count: int, root: int):  # type: ignore[no-untyped-def]
        xs, *_ = known[op, count]
        return lambda comm: call(comm, collective, xs[comm.rank], root, op=op, topology=topology)

    wrong: list[str] = []
    for case, got in zip(cases, on_ranks(n, [part(*case) for case in cases]), strict=True):
        topology, collective, op, count, root = case
        _, whole, bits = known[op, count]
        for error in errors(collective, whole, bits if topology in IN_RANK_ORDER else None, root, got):
            wrong.append(f"{topology} {collective}(op={op}, count={count}, root={root}): {error}")
    assert not wrong, "\n".join(wrong[:20])


def errors(collective: str, whole: Reference, bits: Array | None, root: int, got: list[Array | None]) -> list[str]:
    found = []
    for rank, mine in enumerate(got):
        expected: Reference | None = reduced(collective, whole, root, rank, len(got))
        if expected is None or mine is None:
            if mine is not None or expected is not None:
                found.append(f"rank {rank} got {mine}")
        elif collective == "allreduce" and rank > 0:
            if mine.tobytes() != np.asarray(got[0]).tobytes():
                found.append(f"rank {rank} has other bits than rank 0")
        elif problem := expected.error(mine):
            found.append(f"rank {rank}: {problem}")
        elif bits is not None and not same_bits(mine, reduced(collective, bits, root, rank, len(got))):
            found.append(f"rank {rank}: not reduced in rank order with one rounding")
    return found


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("n", [4, 6, 7, 13, 17])
def test_other_numbers_of_ranks(n: int, topology: str) -> None:
    """Powers of two, primes, and many more ranks than cores; small and large variants."""
    data = {count: contributions("float32", "sum", n, count) for count in (5, 30_011)}
    cases = [(collective, count) for count in data for collective in REDUCING if has(topology, collective)]

    def part(collective: str, count: int):  # type: ignore[no-untyped-def]
        return lambda comm: call(comm, collective, data[count][comm.rank], n // 2, topology=topology)

    for (collective, count), got in zip(cases, on_ranks(n, [part(*case) for case in cases]), strict=True):
        bits = in_rank_order("float32", "sum", data[count]) if topology in IN_RANK_ORDER else None
        whole = reference("float32", "sum", data[count])
        assert not errors(collective, whole, bits, n // 2, got), (collective, count)


@on_each_rank(2)
def test_operators_without_the_type_are_refused_before_sending(comm: Communicator) -> None:
    complexes = [(op, dtype) for op in OPERATORS[3:] for dtype in ("complex64", "complex128")]
    for op, dtype in [(op, name) for op in OPERATORS for name in DTYPES if not takes(op, name)] + complexes:
        for collective in REDUCING:
            with pytest.raises(TypeError, match=f"operator {op} does not take {dtype}"):
                call(comm, collective, np.ones(7, numpy_type(dtype)), op=op)
    assert comm.allreduce(1) == 2
