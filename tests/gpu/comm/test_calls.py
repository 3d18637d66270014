"""Collectives on GPU arrays between processes, compared bitwise with the CPU's results."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from calls import MOVING, REDUCING, ROOTED, call

from gpu.device import LONG, data, every_topology, get, in_window, put, same
from gpu.ranks import on_processes
from pycollective import Communicator, _core
from pycollective.comm.cuda.runtime import load
from pycollective.comm.cuda.signature import Signature
from pycollective.comm.cuda.virtual import VirtualWorld
from pycollective.schedule import describe

pytestmark = pytest.mark.usefixtures("cuda")

TOPOLOGIES = [row.name for row in describe()]
COLLECTIVES = (*REDUCING, *MOVING)
SHORT = 300
"""Elements of float32 that are sent as packets."""


# -- every collective, topology and element type -----------------------------------------------------------------------


def every_collective(comm: Communicator) -> None:
    for count in (0, 1, SHORT, LONG):
        x = data(comm.rank, count)
        for name in COLLECTIVES:
            for root in {0, comm.size - 1} if name in ROOTED else {0}:
                same(call(comm, name, put(x), root), call(comm, name, x, root), name, count, root)


@on_processes(1, 2, 3)
def test_every_collective(comm: Communicator) -> None:
    every_collective(comm)


@on_processes(3)
def test_every_topology(comm: Communicator) -> None:
    every_topology(comm, COLLECTIVES, LONG)


@on_processes(3)
def test_every_dtype(comm: Communicator) -> None:
    for dtype in _core.dtypes():
        for count in (SHORT, LONG):
            x = data(comm.rank, count, dtype)
            for name in ("allreduce", "scan", "exscan"):
                options: Any = {"op": "max" if dtype == "bool" else "sum"}
                same(call(comm, name, put(x), **options), call(comm, name, x, **options), name, dtype, count)
            same(comm.alltoall(put(x)), comm.alltoall(x), dtype, count)


@on_processes(3)
def test_uneven_pieces(comm: Communicator) -> None:
    x = data(comm.rank, (comm.rank + 2, 7))
    same(comm.allgatherv(put(x)), comm.allgatherv(x))
    counts = [comm.rank + peer + 1 for peer in range(comm.size)]
    y = data(comm.rank, (sum(counts), 3))
    same(comm.alltoallv(put(y), counts), comm.alltoallv(y, counts))
    z = data(comm.rank, (comm.size + 1, 5))
    same(comm.reduce_scatter(put(z), op="avg"), comm.reduce_scatter(z, op="avg"))
    out = put(np.zeros(4, np.float32))  # receivers of a scatter need no input
    whole = data(9, 4 * comm.size)
    comm.scatter(put(whole) if comm.rank == 0 else None, out=out)
    same(out, whole[4 * comm.rank :][:4])


# -- array placement ---------------------------------------------------------------------------------------------------


def placed(comm: Communicator, x: np.ndarray[Any, Any], where: str) -> Any:
    """x in a window or in private memory; "mixed": in a window on even ranks."""
    made = in_window(comm, x)
    return put(x) if where == "plain" or (where == "mixed" and comm.rank % 2) else made


@pytest.mark.parametrize("topology", TOPOLOGIES)
@on_processes(3)
def test_placements(comm: Communicator, topology: str) -> None:
    x = data(comm.rank, LONG)
    expected = comm.allreduce(x, topology=topology)
    from_root = comm.broadcast(x, root=1, topology=topology)
    for where in ("window", "plain", "mixed"):
        for there in ("window", "plain", "mixed"):
            a, out = placed(comm, x, where), placed(comm, np.zeros_like(x), there)
            for _ in range(2):
                assert comm.allreduce(a, out=out, topology=topology) is out
            same(out, expected, where, there)
            same(a, x, "the input is unchanged", where, there)
            same(comm.broadcast(a, root=1, out=out, topology=topology), from_root, where, there)
        a = placed(comm, x, where)
        assert comm.allreduce(a, out=a, topology=topology) is a
        same(a, expected, where, "in place")
        a = placed(comm, x, where)
        out = a if comm.rank == 0 else put(x)
        same(comm.allreduce(a, out=out, topology=topology), expected, where, "one rank in place")
        a = placed(comm, x, where)
        same(comm.broadcast(a, root=1, out=a, topology=topology), from_root, where, "in place")


@on_processes(3)
def test_placements_of_other_collectives(comm: Communicator) -> None:
    for where in ("window", "mixed"):
        for name in sorted({*COLLECTIVES} - {"allreduce", "broadcast"}):
            x = data(comm.rank, LONG)
            expected = getattr(comm, name)(x)
            shape = x.shape if expected is None else expected.shape
            shape = comm.broadcast(np.array(shape), 0) if name in ("reduce", "gather") else shape
            a, out = placed(comm, x, where), placed(comm, np.zeros(tuple(shape), np.float32), where)
            same(getattr(comm, name)(a, out=out), expected, name, where)


@on_processes(2)
def test_rows_in_place(comm: Communicator) -> None:
    """Each rank's own block of an allgather or reduce_scatter is already in place."""

    def own(whole: Any, rows: int) -> Any:
        return load().DeviceArray(whole, whole.address + 4 * rows * comm.rank, (rows,), "float32", 0)

    for make in (put, lambda x: in_window(comm, x)):
        for rows in (5, 4000):
            x = data(comm.rank, rows)
            whole = make(np.tile(x, comm.size))
            same(comm.allgather(own(whole, rows), out=whole), comm.allgather(x), rows)
            y = data(comm.rank, rows * comm.size)
            whole = make(y)
            same(comm.reduce_scatter(whole, out=own(whole, rows)), comm.reduce_scatter(y), rows)


@on_processes(3)
def test_windows_come_and_go(comm: Communicator) -> None:
    x = data(comm.rank, LONG)
    expected = comm.allreduce(x)
    for _ in range(6):
        a = in_window(comm, x)
        out = comm.allreduce(a)
        del a  # the call may be in flight
        same(out, expected)
    half = comm.split(comm.rank % 2)
    assert half is not None
    b = half.empty(LONG, np.float32, device="cuda:0")
    b.copy_from_host(x.view(np.uint8))
    same(half.allreduce(b, out=b), half.allreduce(x))
    half.free()
    comm.free()


# -- streams, graphs, channels, handles --------------------------------------------------------------------------------


@on_processes(2)
def test_streams_are_ordered(comm: Communicator) -> None:
    cuda, x = load(), data(comm.rank, LONG)
    streams = [cuda.Stream(0) for _ in range(2)]
    expected = comm.allreduce(x)
    source, a, out = put(x), put(np.zeros_like(x)), put(np.zeros_like(x))
    for turn in range(6):
        stream = streams[(turn + comm.rank) % 2].address
        cuda.copy(a.address, source.address, a.nbytes, stream)
        comm.allreduce(a, out=out, stream=stream, topology="ring" if turn % 2 else None)
        cuda.copy(a.address, out.address, a.nbytes, stream)  # runs after the call
        if turn % 2 == 0:
            assert get(a, stream).tobytes() == expected.tobytes()
        cuda.synchronize(stream)


@on_processes(2)
def test_a_broadcast_leaves_its_output_to_the_call_before_it(comm: Communicator) -> None:
    """Rank 0 enters both calls before rank 1 arrives: its first one still reads what its second one writes."""
    first, second = load().Stream(0), load().Stream(0)
    x, sent = data(comm.rank, LONG), data(9, LONG)
    expected = comm.allreduce(x)
    w, r, source = in_window(comm, x), put(np.zeros_like(x)), put(sent)
    if comm.rank == 1:
        comm.barrier()
    handle = comm.iallreduce(w, out=r, stream=first.address)
    comm.broadcast(source, out=w, stream=second.address)
    if comm.rank == 0:
        comm.barrier()
    handle.wait()
    assert get(r, first.address).tobytes() == expected.tobytes()
    assert get(w, second.address).tobytes() == sent.tobytes()


@pytest.mark.parametrize("window", [False, True])
@on_processes(2)
def test_captured_calls_are_replayed(comm: Communicator, window: bool) -> None:
    cuda, made = load(), load().Stream(0)
    stream = made.address
    for count, topology in ((SHORT, None), (LONG, "direct"), (LONG, "ring")):
        a, out = (in_window(comm, data(0, count)) if window else put(data(0, count)) for _ in range(2))
        comm.allreduce(a, out=out, topology=topology, stream=stream)
        cuda.synchronize(stream)
        comm.barrier()
        cuda.begin_capture(stream)
        comm.allreduce(a, out=out, topology=topology, stream=stream)
        comm.broadcast(out, out=a, root=1, topology=topology, stream=stream)
        graph = cuda.end_capture(stream)
        for turn in range(4):
            x = data(10 * turn + comm.rank, count)
            a.copy_from_host(x.view(np.uint8), stream)
            graph.launch(stream)
            expected = comm.allreduce(x, topology=topology)
            assert get(out, stream).tobytes() == get(a, stream).tobytes() == expected.tobytes(), (count, topology)
            fresh = comm.allreduce(put(x), topology=topology, stream=stream)  # an ordinary call in between
            assert get(fresh, stream).tobytes() == expected.tobytes()
    comm.check()


@on_processes(2)
def test_max_channels(comm: Communicator) -> None:
    for count in (SHORT, 7000, 100_000):
        x = data(comm.rank, count)
        for topology in ("direct", "ring"):
            expected = comm.allreduce(x, topology=topology)
            for most in (1, 2, 100):
                same(comm.allreduce(put(x), topology=topology, max_channels=most), expected, count, topology, most)


def test_packets_keep_to_max_channels(cuda: ModuleType) -> None:
    world = VirtualWorld(2)
    for count in (1, 1000, 2000, 8000):
        for most in (1, 2):
            s = Signature("allreduce", "float32", count, None, -1, "sum", None, (1.0, 1.0), most)
            planned = world.planner.plan(s, 0, False)
            assert not planned.plan.low_latency or planned.plan.channels <= most


@on_processes(3)
def test_handles(comm: Communicator) -> None:
    x = data(comm.rank, LONG)
    several = [comm.iallreduce(put(x), topology=topology) for topology in TOPOLOGIES]
    for topology, handle in zip(TOPOLOGIES, several, strict=True):
        same(handle.result(timeout=20), comm.allreduce(x, topology=topology), topology)
        assert handle.test()
    handle = comm.iallgather(put(x))
    handle.wait()
    same(handle.result(), comm.allgather(x))


@on_processes(2)
def test_barriers_in_a_stream(comm: Communicator) -> None:
    cuda, made = load(), load().Stream(0)
    stream = made.address
    a = comm.empty(1, np.int32, device="cuda")
    for turn, topology in enumerate((None, "ring", None, "tree")):
        a.copy_from_host(np.full(1, turn, np.int32).view(np.uint8), stream)
        assert comm.barrier(stream=stream, topology=topology) is None
        comm.ibarrier(stream=stream).wait(20)
    cuda.synchronize(stream)
    if comm.rank == 0:  # the stream is held back until all ranks have reached this point
        handle = comm.ibarrier(stream=stream)
        with pytest.raises(TimeoutError):
            handle.wait(0.05)
        comm.barrier()
        handle.wait(20)
    else:
        comm.barrier()
        comm.barrier(stream=stream)
        cuda.synchronize(stream)


@on_processes(2)
def test_messages(comm: Communicator) -> None:
    peer = 1 - comm.rank
    for count in (10, 100_000):
        x = put(data(comm.rank, count))
        out = put(np.zeros(count, np.float32))
        handle = comm.irecv(out, peer)
        comm.isend(x, peer).wait()
        same(handle.result(20), data(peer, count))
        assert handle.test()
        if comm.rank == 0:
            comm.send(x, 1)
            host = np.empty(count, np.float32)
            comm.recv(host, 1)
            assert host.tobytes() == data(1, count).tobytes()
        else:
            assert comm.recv(out, 0) is out
            same(out, data(0, count))
            comm.send(x, 0)


# -- without a path between the GPUs -----------------------------------------------------------------------------------


def other_ways(comm: Communicator, text: str) -> None:
    """Every rank warns, and explains, that the calls take another way."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        every_collective(comm)
    assert [1 for warning in caught if text in str(warning.message)], [str(w.message) for w in caught]
    assert text in str(comm.explain("allreduce", 4 * LONG)), comm.explain("allreduce", 4 * LONG)
    a = in_window(comm, data(comm.rank, LONG))
    same(comm.allreduce(a, out=a), comm.allreduce(data(comm.rank, LONG)))
    comm.iallreduce(a).wait()


@pytest.mark.emulated
@on_processes(2, env={"PC_EMULATED_NO_IPC": "1"})
def test_without_cuda_ipc(comm: Communicator) -> None:
    other_ways(comm, "cuda-vmm")


@pytest.mark.emulated
@on_processes(2, env={"PC_EMULATED_NO_IPC": "1", "PC_EMULATED_NO_VMM": "1"})
def test_without_shared_device_memory(comm: Communicator) -> None:
    other_ways(comm, "staged through host memory")
    a, stream = put(data(comm.rank, LONG)), load().Stream(0)
    load().begin_capture(stream.address)
    with pytest.raises(RuntimeError, match="cannot be captured"):
        comm.allreduce(a, out=a, stream=stream.address)
    load().end_capture(stream.address)
