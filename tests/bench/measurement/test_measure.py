"""A turn: what is written before a call, what is timed, and where arrays begin."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycollective.bench.measurement import measure
from pycollective.bench.peers.tensors import as_tensor
from pycollective.bench.workload.cases import MEASURED, Case, element_size
from pycollective.bench.workload.plan import PAGE, Budget, Candidate, Conditions
from pycollective.comm.arguments.arrays import numpy_dtype


class World:
    """One rank, which counts its barriers."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.barriers = 0

    def barrier(self) -> None:
        self.barriers += 1

    def share(self, value: Any) -> list[Any]:
        return [value]


class Clock:
    """The time as seen by `measure`: it advances only when a test sets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        monkeypatch.setattr(measure, "perf_counter_ns", lambda: self.now)
        monkeypatch.setattr(measure, "clock_cost", lambda: 0)


class Peer:
    """A library whose allreduce takes as long as it is told, and notes its input."""

    name, version, checked = "peer", "", True
    always_in_place = frozenset[str]()

    def __init__(self, clock: Clock, durations: list[int]) -> None:
        self.seen: list[float] = []
        self._clock, self._durations = clock, durations

    def supports(self, case: Case) -> bool:
        return True

    def allreduce(self, send: Any, recv: Any, op: str) -> Any:
        def call() -> None:
            self._clock.now += self._durations[len(self.seen) % len(self._durations)]
            self.seen.append(float(send[0]))
            recv[:] = send

        return call


def measured(
    clock: Clock, peer: Peer, count: int, calls: int, fresh: bool = True, quartile: bool = False, **candidate: Any
) -> tuple[Any, World]:
    world, conditions = World(), Conditions(fresh, quartile=quartile)
    buffers = measure.Buffers(world, {"plain": lambda nbytes: np.empty(nbytes, np.uint8)}, conditions)
    candidates = [Candidate(Case("allreduce", "float32", "sum", count, 1), "peer", **candidate)]
    peers: Any = {("peer", ""): peer}
    budget = Budget(calls=calls, warmup=0, checks=None if candidate else 0)
    [outcome] = measure.measure(candidates, peers, buffers, budget)
    assert isinstance(outcome, measure.Measured)
    return outcome, world


def test_every_call_has_a_new_input_and_only_calls_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    peer = Peer(clock, [100])
    writer = measure._writer

    def slow_writer(world: Any, array: Any) -> Any:
        write = writer(world, array)

        def slowly(number: int) -> None:
            clock.now += 5000
            write(number)

        return slowly

    monkeypatch.setattr(measure, "_writer", slow_writer)
    outcome, world = measured(clock, peer, 16, 10)
    assert outcome.seconds == [pytest.approx(100e-9)]
    timed = peer.seen[-10:]
    assert all(before != after for before, after in pairwise(timed))
    assert world.barriers == 1  # before the turn


def test_the_99th_percentile_is_that_of_the_timed_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    outcome, _ = measured(clock, Peer(clock, [7, *range(1, 101)]), 16, 100)  # the first call is not timed
    assert outcome.p99 == pytest.approx(99e-9)
    assert outcome.seconds == [pytest.approx(50.5e-9)]


def test_a_round_can_count_with_its_lower_quartile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time of each call's slowest rank: here the other rank takes 40 ns for every call."""
    clock = Clock(monkeypatch)

    def share(self: World, value: Any) -> list[Any]:
        turns = isinstance(value, np.ndarray) and value.shape == (1, 101)
        return [value, np.full_like(value, 40)] if turns else [value]

    monkeypatch.setattr(World, "share", share)
    outcome, _ = measured(clock, Peer(clock, [7, *range(1, 102)]), 16, 101, quartile=True)
    assert outcome.seconds == [pytest.approx(40e-9)]
    outcome, _ = measured(clock, Peer(clock, [7, *range(101, 202)]), 16, 101, quartile=True)
    assert outcome.seconds == [pytest.approx(126e-9)]
    with pytest.raises(ValueError, match="fresh"):
        Conditions(fresh=False, quartile=True).check(["float32"])


def test_ranks_wait_for_each_other_after_writing_much(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert measured(clock, Peer(clock, [1]), 1 << 16, 10)[1].barriers == 1 + 10


def test_inputs_stay_if_they_are_not_to_be_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    peer = Peer(clock, [100])
    outcome, _ = measured(clock, peer, 16, 10, fresh=False)
    assert outcome.seconds == [pytest.approx(100e-9)]
    assert outcome.p99 is None
    assert len(set(peer.seen)) == 1


DTYPES = st.sampled_from(["int8", "bfloat16", "float32", "float64"])
CASES = st.builds(Case, st.sampled_from([*MEASURED]), DTYPES, st.just("none"), st.integers(0, 3000), st.integers(1, 4))


@given(CASES, st.sampled_from(["random", "page", "64"]), st.booleans())
def test_arrays_begin_where_the_conditions_say(case: Case, align: str, in_place: bool) -> None:
    conditions = Conditions(align=align)
    offsets = conditions.offsets(case)
    assert offsets == Conditions(align=align).offsets(case)
    assert all(0 <= offset < PAGE and offset % element_size(case.dtype) == 0 for offset in offsets)
    assert align == "random" or set(offsets) == {0 if align == "page" else 64}
    buffers = measure.Buffers(World(), {"plain": lambda nbytes: np.empty(nbytes, np.uint8)}, conditions)
    send, recv = buffers.pair(Candidate(case, "peer"), in_place)
    assert (send is recv) == in_place
    assert (recv.size, recv.ctypes.data % PAGE if recv.size else offsets[1]) == (case.recv_count, offsets[1])
    assert in_place or not send.size or (send.size, send.ctypes.data % PAGE) == (case.send_count, offsets[0])


def test_random_alignments_differ_between_cases() -> None:
    cases = [Case("allreduce", "float32", "sum", count, 2) for count in range(1, 200)]
    assert len({Conditions().offsets(case) for case in cases}) > 190


@pytest.mark.torch
@pytest.mark.parametrize("in_place", [False, True])
def test_a_library_can_be_given_tensors(monkeypatch: pytest.MonkeyPatch, in_place: bool) -> None:
    torch = pytest.importorskip("torch")
    given: list[tuple[Any, Any]] = []

    class OnTensors(Peer):
        def allreduce(self, send: Any, recv: Any, op: str) -> Any:
            given.append((send, recv))
            return super().allreduce(send, recv, op)

    clock = Clock(monkeypatch)
    outcome, _ = measured(clock, OnTensors(clock, [1]), 16, 1, in_place=in_place, arrays="torch")
    assert outcome.wrong == 0
    [(send, recv)] = given
    assert isinstance(recv, torch.Tensor) and isinstance(send, torch.Tensor) and (send is recv) == in_place
    assert (send.data_ptr() % PAGE, recv.data_ptr() % PAGE) == outcome.offsets


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bool", "int8", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_a_tensor_is_the_array_s_memory(dtype: str) -> None:
    pytest.importorskip("torch")
    array = np.zeros(4, numpy_dtype(dtype))
    tensor = as_tensor(array)
    array[1] = 1
    assert str(tensor.dtype) == f"torch.{dtype}"
    assert [float(value) for value in tensor.float()] == [0, 1, 0, 0]
