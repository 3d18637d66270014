"""Vector clocks packed in integers: the same as lists of numbers."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycollective.errors import TopologyError
from pycollective.schedule import Placement, Program, compile, topology
from pycollective.schedule.compiler.waits import UNKNOWN, VectorClocks


@st.composite
def two_clocks(draw: Any) -> tuple[int, list[int], list[int]]:
    most, size = draw(st.integers(0, 300)), draw(st.integers(1, 9))
    numbers = st.lists(st.integers(UNKNOWN, most), min_size=size, max_size=size)
    return most, draw(numbers), draw(numbers)


@given(two_clocks())
def test_joined_clocks_know_the_larger_number_of_each_rank(drawn: tuple[int, list[int], list[int]]) -> None:
    most, first, second = drawn
    clocks = VectorClocks(len(first), most)
    packed = []
    for numbers in (first, second):
        clock = 0
        for rank, count in enumerate(numbers):
            if count != UNKNOWN:
                clock = clocks.join(clock, clocks.when(rank, count))
        packed.append(clock)
    joined = clocks.join(*packed)
    for rank, counts in enumerate(zip(first, second, strict=True)):
        for count in range(most + 1):
            assert clocks.knows(joined, rank, count) == (count <= max(counts))


def test_compiling_leaves_no_cyclic_garbage_and_collection_as_it_was() -> None:
    @topology("of_this_test", replace=True)
    class Wrong:
        def allreduce(self, p: Program) -> None:
            raise TopologyError("wrong")

    gc.collect()
    gc.disable()
    try:
        compile("halving_doubling", "allreduce", 11, placement=Placement.WINDOW)
        assert gc.collect() < 50  # not one for each value or step
        assert not gc.isenabled()
    finally:
        gc.enable()
    compile("halving_doubling", "allreduce", 12)
    assert gc.isenabled()
    with pytest.raises(TopologyError):
        compile(Wrong, "allreduce", 2)
    assert gc.isenabled()
