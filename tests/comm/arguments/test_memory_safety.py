"""Unusual factors, copies in call order, sizes that do not fit: no wrong results and no invalid memory accesses."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest
from calls import on_each_rank, place

import pycollective
from pycollective import Communicator, _core
from pycollective.comm.cuda.signature import Factors

TIMEOUT = 0.3


# -- factors ---------------------------------------------------------------------------------------------------------


@on_each_rank(2)
def test_a_nan_factor_gives_nan_and_one_plan(comm: Communicator) -> None:
    for factor in ("prescale", "postscale"):
        for _ in range(20):
            total = comm.allreduce(np.ones(5), **{factor: float("nan")})
            assert np.isnan(total).all()
    assert comm.allreduce(np.ones(5), prescale=2.0)[0] == 2.0 * comm.size


@on_each_rank(2)
def test_a_factor_of_minus_zero_is_not_one_of_zero(comm: Communicator) -> None:
    for factor in (0.0, -0.0, 0.0, -0.0):
        assert np.signbit(comm.allreduce(np.ones(3), prescale=factor)[0]) == np.signbit(factor)
    assert Factors((0.0, 1.0)) != Factors((-0.0, 1.0))
    assert Factors((float("nan"), 1.0)) == Factors((float("nan"), 1.0))
    assert len({Factors((float("nan"), 1.0)), Factors((float("nan"), 1.0)), Factors((0.0, 1.0))}) == 2
    assert Factors((1.0, 1.0)) == (1.0, 1.0)


# -- copies of a call ------------------------------------------------------------------------------------------------


@on_each_rank(2)
def test_a_broadcast_leaves_its_output_to_the_call_before_it(comm: Communicator) -> None:
    """The reduction reads w until the last rank has arrived, and the broadcast after it writes to w."""
    w = comm.empty(1 << 16)
    for number in range(5):
        w[:], r = comm.rank + 1.0, np.zeros(1 << 16)
        handle = comm.iallreduce(w, out=r)
        comm.broadcast(np.full(1 << 16, 100.0 + number), out=w)
        handle.wait()
        assert (r == 3.0).all() and (w == 100.0 + number).all()


@on_each_rank(2)
def test_a_reduction_of_strided_input_waits_for_the_call_before_it(comm: Communicator) -> None:
    """The strided input of a call is the output of the previous one, as with contiguous inputs."""
    for start in (comm.allreduce, lambda x: comm.iallreduce(x).result()):
        r = np.zeros((300, 200))
        handle = comm.iallreduce(np.ones((300, 200)), out=r)
        assert (start(r[::3, 1::2]) == 4.0).all()
        handle.wait()
        r = np.arange(60000.0).reshape(300, 200)
        assert (start(r.T) == 2 * r.T).all()


@pytest.mark.parametrize("why", ["mismatch", "timeout", "argument"])
@on_each_rank(2)
def test_a_refused_broadcast_leaves_its_output_unchanged(comm: Communicator, why: str, event: threading.Event) -> None:
    w, x = place(comm, np.full(1 << 14, 7.0), "window"), np.ones(1 << 14)
    error: Any = {"mismatch": pycollective.MismatchError, "timeout": pycollective.TimeoutError}.get(why, ValueError)
    if why == "timeout" and comm.rank == 1:
        event.wait()
        return
    with pytest.raises((error, pycollective.CommunicatorError)):
        if why == "mismatch" and comm.rank == 1:
            comm.broadcast(w[:-1], 0, out=w[:-1])
        elif why == "argument":
            comm.broadcast(x, 0, out=w, topology="no such topology")
        else:
            comm.broadcast(x, 0, out=w, timeout=TIMEOUT)
    assert (w == 7.0).all()
    event.set()


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("count", [10, 1000, 100_000])
@on_each_rank()
def test_broadcasts_that_fill_and_that_do_not_follow_each_other(comm: Communicator, n: int, count: int) -> None:
    w = comm.empty(count, np.int64)
    plain = np.zeros(count, np.int64)
    for number in range(12):
        root = number % comm.size
        x = np.full(count, number if comm.rank == root else -1)
        out = plain if number % 5 == 4 and comm.rank == 0 else w  # if one rank's is not a window, all stage
        if number % 3 == 0:
            w[:] = x
            comm.broadcast(w, root, out=w)
            out = w
        elif number % 3 == 1:
            comm.broadcast(x, root, out=out)
        else:
            comm.ibroadcast(x, root, out=out).wait()
        assert (out == number).all()
        assert comm.allreduce(np.ones(1))[0] == comm.size


# -- sizes -----------------------------------------------------------------------------------------------------------

HUGE = [1 << 62, 1 << 62, 1 << 62, 1 << 62]


def _call(comm: Communicator, name: str, x: Any, out: Any, counts: Any) -> Any:
    team: Any = comm.backend.team
    return team.call(_core.collectives().index(name), x, out, "sum", None, 0, counts, None, TIMEOUT, False)


@on_each_rank(4)
def test_counts_whose_sum_overflows_are_refused(comm: Communicator) -> None:
    """The sum of HUGE is 0 in 64 bits, which matches an empty array."""
    nothing, one = np.zeros(0), np.zeros(1)
    for name in ("allgather", "reduce_scatter", "gather", "scatter"):
        for counts in (HUGE, [1 << 60] * 4):  # elements; bytes
            for x, out in ((nothing, nothing), (one, nothing), (nothing, one)):
                with pytest.raises(ValueError, match="overflows"):
                    _call(comm, name, x, out, counts)
    with pytest.raises(ValueError, match="overflows"):
        _call(comm, "alltoall", nothing, nothing, HUGE * 4)
    with pytest.raises(ValueError, match="64 bits"):
        _call(comm, "allgather", nothing, nothing, [1 << 64] * 4)


def test_layouts_that_overflow_are_refused() -> None:
    most = (1 << 63) - 1
    for make in (
        lambda: _core.Layout.blocks(HUGE, False, False),
        lambda: _core.Layout.blocks([], False, False),
        lambda: _core.Layout.blocks([1, -1], False, False),
        lambda: _core.Layout.matrix(HUGE, 2),
        lambda: _core.Layout.matrix([1, 2, 3], 2),
        lambda: _core.Layout.split(most, 2, 64),
        lambda: _core.Layout.split(-1, 2, 64),
        lambda: _core.Layout.split(5, 0, 1),
        lambda: _core.Layout.split(5, 1, 0),
        lambda: _core.Layout.split(5, (1 << 31) - 1, 1),
    ):
        with pytest.raises(ValueError):
            make()
    assert sum(_core.Layout.split(most - 1000, 1, 1).length) == most - 1000


@on_each_rank(2)
def test_windows_that_do_not_fit_are_refused(comm: Communicator) -> None:
    team: Any = comm.backend.team
    segment = _core.Segment.create("local", 4096)
    for number, stride, nbytes in ((1 << 40, 1 << 62, 8), (2, 4096, 4096), (3, -8, -8), (4, 8, 16), (-1, 8, 8)):
        with pytest.raises(ValueError):
            team.window(segment, number, stride, nbytes)
    window = team.window(segment, 5, 1024, 1024)
    for shape in ([129], [1 << 62, 4], [-1, -8], [1 << 32, 1 << 32], [(1 << 63) - 1]):
        with pytest.raises(ValueError):
            window.array(np.dtype(float), shape)
    with pytest.raises(TypeError):
        window.array(np.dtype(object), [4])
    assert window.array(np.dtype(float), [128]).shape == (128,)
    for shape in ((1 << 62, 1 << 62), (1 << 40, 1 << 40), (-1, -4)):
        with pytest.raises((ValueError, pycollective.CommunicatorError)):
            comm.empty(shape)


class DLTensor(ctypes.Structure):
    """DLManagedTensor of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("number", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    )  # fmt: skip


capsule_of = ctypes.pythonapi.PyCapsule_New
capsule_of.restype, capsule_of.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class _Producer:
    """Exports NumPy memory with another shape, through a DLPack capsule made by ctypes."""

    def __init__(self, shape: list[int], strides: list[int] | None = None, offset: int = 0) -> None:
        self.memory, extents = np.zeros(16), ctypes.c_int64 * len(shape)
        steps = None if strides is None else extents(*strides)
        data = self.memory.ctypes.data
        self.tensor = DLTensor(data, 1, 0, len(shape), 2, 64, 1, extents(*shape), steps, offset)

    def __dlpack__(self, **_: Any) -> Any:
        return capsule_of(ctypes.addressof(self.tensor), b"dltensor", None)


def test_invalid_dlpack_shapes_are_refused() -> None:
    assert _core.HostBuffer(_Producer([4, 4])).count == 16
    for shape in ([1 << 32, 1 << 32], [1 << 62, 4], [-4, -4], [1 << 61], [1, 1 << 62, 8]):
        with pytest.raises(ValueError):
            _core.HostBuffer(_Producer(shape))
        with pytest.raises(ValueError):
            _core.HostBuffer(_Producer(shape, [0] * len(shape)), True)
    with pytest.raises(ValueError):
        _core.HostBuffer(_Producer([4], [1 << 62]), True)
    with pytest.raises(ValueError):
        _core.HostBuffer(_Producer([4, 4], offset=(1 << 64) - 8))


# -- plans that do not fit -------------------------------------------------------------------------------------------


def test_a_schedule_that_does_not_fit_the_call_is_refused() -> None:
    """A planner's result is checked against the call: else the executor would access any memory."""
    from pycollective.comm.planner import Planner, ScheduleKey, schedule_for
    from pycollective.schedule.compiler.schedule import Placement
    from pycollective.schedule.language import registry

    direct = registry.get("direct")

    def table(name: str, placement: Placement, root: int | None = None) -> Any:
        return _core.Schedule(schedule_for(ScheduleKey(direct, name, 2, root, placement, False)).table(0))

    answers = {
        "allreduce": [table("allreduce", Placement.WINDOW), None],
        "broadcast": [table("allreduce", Placement.STAGED), table("broadcast", Placement.WINDOW, 0)],
        "reduce_scatter": [table("allgather", Placement.STAGED)],
    }
    size, scratch = 2, 1 << 16
    segment = _core.Segment.create("local", _core.Team.segment_bytes(size, scratch))
    for name, schedules in answers.items():
        for schedule in schedules:
            sound = Planner(0, size)

            def planner(*request: Any, schedule: Any = schedule, sound: Any = sound) -> Any:
                return (schedule, *sound(*request)[1:])

            team = _core.Team(segment, 0, size, scratch, [0, 1], "test", True, planner)
            number, counts = _core.collectives().index(name), [2, 2] if name == "reduce_scatter" else None
            out = np.zeros(2 if counts else 4)
            with pytest.raises((ValueError, TypeError)):
                team.call(number, np.ones(4), out, "sum", None, 0, counts, None, TIMEOUT, False)
    with pytest.raises(ValueError, match="does not reduce"):
        team = _core.Team(segment, 0, size, scratch, [0, 1], "test", True, Planner(0, size))
        team.call(1, np.ones(4), np.ones(4), "sum", None, 0, None, (2.0, 1.0), TIMEOUT, False)
