"""GPU arrays of ranks on several hosts, staged through host memory: virtual hosts on one emulated device."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from bodies import Body
from calls import MOVING, REDUCING, call, on_each_rank

import pycollective as pc
from gpu.device import Dlpack, Interface, data, every_topology, get, put, same
from pycollective import Communicator, _core

pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("cuda")]

COLLECTIVES = (*REDUCING, *MOVING, "scan", "exscan")
COUNT = 6011


@pytest.fixture(autouse=True)
def _staged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCOLLECTIVE_CUDA_HOSTS", "staged")


def in_small_tiles(comm: Communicator) -> Communicator:
    comm.backend.team.tile_bytes = (1024, 1024)
    comm.barrier()
    return comm


def across(*hosts: int) -> Callable[[Body], Body]:
    """Make a test of a function of the ranks of these hosts, with small tiles."""

    def decorate(body: Body) -> Body:
        @functools.wraps(body)
        def rank(comm: Communicator, **parameters: Any) -> None:
            body(in_small_tiles(comm), **parameters)

        return on_each_rank(len(hosts), hosts=hosts)(rank)

    return decorate


def calls(comm: Communicator, give: Callable[[Any], Any], take: Callable[[Any], Any]) -> dict[Any, bytes | None]:
    """The bits of every collective's result; `give` and `take` convert to and from a device's arrays."""
    found: dict[Any, bytes | None] = {}
    for count in (0, 1, 300, COUNT):
        x = data(comm.rank, count)
        for name in COLLECTIVES:
            made = call(comm, name, give(x), comm.size - 1)
            found[name, count] = None if made is None else take(made).tobytes()
    for dtype in _core.dtypes():
        x = data(comm.rank, COUNT, dtype)
        found["allreduce", dtype] = take(comm.allreduce(give(x), op="max" if dtype == "bool" else "sum")).tobytes()
        found["alltoall", dtype] = take(comm.alltoall(give(x))).tobytes()
    rows = data(comm.rank, (comm.rank + 2, 7))
    found["allgatherv"] = take(comm.allgatherv(give(rows))).tobytes()
    counts = [comm.rank + peer + 1 for peer in range(comm.size)]
    found["alltoallv"] = take(comm.alltoallv(give(data(comm.rank, (sum(counts), 3))), counts)).tobytes()
    return found


@pytest.mark.parametrize("hosts", [(0, 1), (0, 0, 1, 1), (0, 1, 0)])
def test_the_bits_are_those_of_one_host_without_gpus(hosts: tuple[int, ...]) -> None:
    found = pc.local_world(len(hosts), hosts=hosts).run(lambda comm: calls(in_small_tiles(comm), put, get))
    expected = pc.local_world(len(hosts)).run(lambda comm: calls(comm, np.copy, np.asarray))
    for rank, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert [key for key in other if one[key] != other[key]] == [], rank


@across(0, 0, 1, 1)
def test_every_topology(comm: Communicator) -> None:
    every_topology(comm, COLLECTIVES, COUNT)


def ring(rank: int, size: int, step: int = 0) -> dict[int, float]:
    return {rank: 0.5, (rank + 1) % size: 0.25, (rank - 1) % size: 0.25}


@across(0, 0, 1, 1)
def test_operators_factors_and_mix(comm: Communicator) -> None:
    x = data(comm.rank, COUNT)
    farther = pc.op(lambda a, b: a if abs(a) >= abs(b) else b)
    for options in ({"op": "avg"}, {"op": "prod"}, {"prescale": 0.5, "postscale": 3.0}, {"op": farther}):
        same(comm.allreduce(put(x), **options), comm.allreduce(x, **options), options)  # type: ignore[arg-type]
    for step in range(2):
        same(comm.mix(put(x), ring, step), comm.mix(x, ring, step), step)
    out = put(x)
    comm.exscan(put(x), out=out)
    assert comm.rank > 0 or get(out).tobytes() == x.tobytes(), "rank 0's array is unchanged"


# -- streams -----------------------------------------------------------------------------------------------------------


def late(cuda: ModuleType, stream: int, into: Any, source: Any, other: Any) -> None:
    """Copy, after work with another, large array has kept the stream busy."""
    half = other.nbytes // 2
    for _ in range(4):
        cuda.copy(other.address, other.address + half, half, stream)
    cuda.copy(into.address, source.address, source.nbytes, stream)


@pytest.fixture
def _late_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PC_EMULATED_LATE_COPIES", "500")


@pytest.mark.usefixtures("_late_copies")
@on_each_rank(2, hosts=(0, 1))
def test_a_call_is_ordered_in_its_stream(comm: Communicator, cuda: ModuleType) -> None:
    """It sees earlier work, and later work sees the result and may overwrite the arrays."""
    streams = [cuda.Stream(0) for _ in range(2)]
    a, out = put(np.zeros(60_000, np.float32)), put(np.zeros(60_000, np.float32))
    copy, other = put(np.zeros(60_000, np.float32)), put(np.zeros(1 << 22, np.float32))
    for turn in range(6):
        stream = streams[turn % 2].address
        x = data(10 * turn + comm.rank, 60_000)
        expected = comm.allreduce(x)
        source = put(x)
        late(cuda, stream, a, source, other)
        comm.allreduce(a, out=out, stream=stream)
        cuda.copy(a.address, copy.address, a.nbytes, stream)  # a is read before this
        cuda.copy(copy.address, out.address, a.nbytes, stream)
        cuda.copy(out.address, a.address, a.nbytes, stream)
        assert get(copy, stream).tobytes() == expected.tobytes(), turn


@across(0, 1)
def test_producers_of_arrays_are_waited_for(comm: Communicator, cuda: ModuleType) -> None:
    producer, made = cuda.Stream(0), cuda.Stream(0)
    mine, x = made.address, data(comm.rank, 50_000)
    source, a, other = put(x), put(np.zeros_like(x)), put(np.zeros(1 << 22, np.float32))
    expected = get(comm.allreduce(source))  # sets the GPU side up
    late(cuda, producer.address, a, source, other)
    array = Dlpack(put(x))
    for given in (Interface(a, stream=producer.address), array):
        assert get(comm.allreduce(given, stream=mine), mine).tobytes() == expected.tobytes()
    assert array.asked == mine


@across(0, 1)
def test_handles_and_barriers(comm: Communicator, cuda: ModuleType) -> None:
    stream = cuda.Stream(0)
    x = data(comm.rank, 5000)
    handle = comm.iallreduce(put(x), stream=stream.address)
    handle.wait(5)
    assert get(handle.result(), stream.address).tobytes() == comm.allreduce(x).tobytes()
    comm.barrier(stream=stream.address)
    comm.ibarrier(stream=stream.address).wait(5)


@across(0, 0, 1)
def test_calls_of_other_arrays_in_between(comm: Communicator) -> None:
    """Nonblocking calls on CPU arrays are executed before a later staged one, in the same order on all ranks."""
    x = data(comm.rank, 20_000)
    expected = comm.allreduce(x)
    for _ in range(4):
        handles = [comm.iallreduce(x) for _ in range(2)]
        same(comm.allreduce(put(x)), expected)
        assert all(handle.result().tobytes() == expected.tobytes() for handle in handles)


@across(0, 1)
def test_a_capture_is_refused(comm: Communicator, cuda: ModuleType) -> None:
    a, stream = put(data(0, 100)), cuda.Stream(0)
    comm.allreduce(a)
    cuda.begin_capture(stream.address)
    with pytest.raises(pc.CommunicatorError, match=r"cannot be captured into a graph: its arrays are staged"):
        comm.allreduce(a, stream=stream.address)
    cuda.end_capture(stream.address)
    comm.allreduce(a, stream=stream.address)


# -- faults and settings -----------------------------------------------------------------------------------------------


@across(0, 1)
def test_a_rank_that_does_not_come(comm: Communicator) -> None:
    a = put(data(comm.rank, COUNT))
    comm.allreduce(a)
    if comm.rank == 1:
        time.sleep(1)
    else:
        with pytest.raises(pc.TimeoutError, match=r"not entered within 0.5 s by rank 1"):
            comm.allreduce(a, timeout=0.5)
    with pytest.raises(pc.TimeoutError, match=r"given up|rank 1"):
        comm.allreduce(a)


@across(0, 1)
def test_calls_that_differ(comm: Communicator) -> None:
    with pytest.raises(pc.MismatchError, match=r"count=100.*count=99|count=99.*count=100"):
        comm.allreduce(put(data(0, 100 - comm.rank)), timeout=20)


@across(0, 1)
def test_wrong_arrays_and_what_explain_reports(comm: Communicator) -> None:
    a = put(data(0, 100))
    with pytest.raises(ValueError, match=r"out has 50 elements"):
        comm.allreduce(a, out=put(data(0, 50)))
    with pytest.raises(TypeError, match=r"bxor.*float32"):
        comm.allreduce(a, op="bxor")
    comm.allreduce(a)
    text = "staged through host memory in pinned tiles, because PYCOLLECTIVE_CUDA_HOSTS is staged"
    assert text in str(comm.explain("allreduce", 1 << 20))


def test_nccl_can_be_required(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(comm: Communicator) -> None:
        with pytest.raises(pc.CommunicatorError, match=r"PYCOLLECTIVE_CUDA_HOSTS is nccl: .*these are threads"):
            comm.allreduce(put(data(0, 10)))

    monkeypatch.setenv("PYCOLLECTIVE_CUDA_HOSTS", "nccl")
    pc.local_world(2, hosts=(0, 1)).run(work)
