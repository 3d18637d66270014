"""Collectives on GPU arrays between processes, compared bitwise with the CPU's results."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from processes import run

from gpu import emulation
from gpu.device import LONG, data, get, put
from pycollective import Communicator, _core
from pycollective.comm.arguments.arrays import numpy_dtype
from pycollective.schedule import describe

pytestmark = pytest.mark.usefixtures("cuda")

TOPOLOGIES = [row.name for row in describe()]
COLLECTIVES = ("allreduce", "broadcast", "reduce", "reduce_scatter", "allgather", "gather", "scatter", "alltoall")
SHORT = 300
"""Elements of float32 that are sent as packets."""


def same(found: Any, expected: Any, *what: object) -> None:
    if expected is None:
        assert found is None, what
        return
    assert found.shape == expected.shape, what
    assert get(found).tobytes() == np.ascontiguousarray(expected).tobytes(), what


# -- every collective, topology and element type -----------------------------------------------------------------------


def every_collective(comm: Communicator, link: Connection) -> None:
    emulation.install()
    for count in (0, 1, SHORT, LONG):
        x = data(comm.rank, count)
        for name in COLLECTIVES:
            for root in {0, comm.size - 1} if name in ("broadcast", "reduce", "gather", "scatter") else {None}:
                options: Any = {} if root is None else {"root": root}
                same(getattr(comm, name)(put(x), **options), getattr(comm, name)(x, **options), name, count, root)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_every_collective(n: int) -> None:
    run(n, every_collective)


def every_topology(comm: Communicator, link: Connection) -> None:
    emulation.install()
    for row in describe():
        for name in COLLECTIVES:
            if name in row.collectives:
                x = data(comm.rank, LONG)
                expected = getattr(comm, name)(x, topology=row.name)
                same(getattr(comm, name)(put(x), topology=row.name), expected, name, row.name)


def test_every_topology() -> None:
    run(3, every_topology)


def every_dtype(comm: Communicator, link: Connection) -> None:
    emulation.install()
    for dtype in _core.dtypes():
        for count in (SHORT, LONG):
            x = data(comm.rank, count, dtype)
            op = "max" if dtype == "bool" else "sum"
            same(comm.allreduce(put(x), op=op), comm.allreduce(x, op=op), dtype, count)
            same(comm.alltoall(put(x)), comm.alltoall(x), dtype, count)


def test_every_dtype() -> None:
    run(2, every_dtype)


def uneven_pieces(comm: Communicator, link: Connection) -> None:
    emulation.install()
    x = data(comm.rank, (comm.rank + 2, 7))
    same(comm.allgatherv(put(x)), comm.allgatherv(x))
    counts = [comm.rank + peer + 1 for peer in range(comm.size)]
    y = data(comm.rank, (sum(counts), 3))
    same(comm.alltoallv(put(y), counts), comm.alltoallv(y, counts))
    z = data(comm.rank, (comm.size + 1, 5))
    same(comm.reduce_scatter(put(z), op="avg"), comm.reduce_scatter(z, op="avg"))
    out = put(np.zeros(4, np.float32))  # receivers of a scatter need no input
    whole = put(data(9, 4 * comm.size)) if comm.rank == 0 else None
    comm.scatter(whole, out=out)
    assert get(out).tobytes() == data(9, 4 * comm.size)[4 * comm.rank :][:4].tobytes()


def test_uneven_pieces() -> None:
    run(3, uneven_pieces)


# -- array placement ---------------------------------------------------------------------------------------------------


def placed(comm: Communicator, x: np.ndarray[Any, Any], where: str) -> Any:
    """x in a window or in private memory; "mixed": in a window on even ranks."""
    made = comm.empty(x.shape, x.dtype, device="cuda")
    if where == "plain" or (where == "mixed" and comm.rank % 2):
        return put(x)
    made.copy_from_host(x.view(np.uint8))
    return made


def placements(comm: Communicator, link: Connection, topology: str) -> None:
    emulation.install()
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
        other = a if comm.rank == 0 else put(x)
        same(comm.allreduce(a, out=other, topology=topology), expected, where, "one rank in place")
        a = placed(comm, x, where)
        same(comm.broadcast(a, root=1, out=a, topology=topology), from_root, where, "in place")


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_placements(topology: str) -> None:
    run(3, placements, topology)


def other_placements(comm: Communicator, link: Connection) -> None:
    emulation.install()
    for where in ("window", "mixed"):
        for name in ("reduce", "reduce_scatter", "allgather", "gather", "scatter", "alltoall"):
            x = data(comm.rank, LONG)
            expected = getattr(comm, name)(x)
            shape = x.shape if expected is None else expected.shape
            shape = comm.broadcast(np.array(shape), 0) if name in ("reduce", "gather") else shape
            a, out = placed(comm, x, where), placed(comm, np.zeros(tuple(shape), np.float32), where)
            same(getattr(comm, name)(a, out=out), expected, name, where)


def test_placements_of_other_collectives() -> None:
    run(3, other_placements)


def rows_in_place(comm: Communicator, link: Connection) -> None:
    """Each rank's own block of an allgather or reduce_scatter is already in place."""
    emulation.install()
    cuda: Any = emulation.install()
    for make in (put, lambda x: placed(comm, x, "window")):
        for rows in (5, 4000):
            x = data(comm.rank, rows)
            whole = make(np.tile(x, comm.size))
            mine = cuda.DeviceArray(whole, whole.address + whole.nbytes // comm.size * comm.rank, (rows,), "float32", 0)
            same(comm.allgather(mine, out=whole), comm.allgather(x), rows)
            y = data(comm.rank, rows * comm.size)
            whole = make(y)
            mine = cuda.DeviceArray(whole, whole.address + whole.nbytes // comm.size * comm.rank, (rows,), "float32", 0)
            same(comm.reduce_scatter(whole, out=mine), comm.reduce_scatter(y), rows)


def test_rows_in_place() -> None:
    run(2, rows_in_place)


def windows_come_and_go(comm: Communicator, link: Connection) -> None:
    emulation.install()
    x = data(comm.rank, LONG)
    expected = comm.allreduce(x)
    for _ in range(6):
        a = comm.empty(LONG, np.float32, device="cuda")
        a.copy_from_host(x.view(np.uint8))
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


def test_windows_come_and_go() -> None:
    run(3, windows_come_and_go)


# -- streams, graphs, channels, handles --------------------------------------------------------------------------------


def in_streams(comm: Communicator, link: Connection) -> None:
    cuda: Any = emulation.install()
    streams = [cuda.Stream(0) for _ in range(2)]
    x = data(comm.rank, LONG)
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


def test_streams_are_ordered() -> None:
    run(2, in_streams)


def ahead_of_a_peer(comm: Communicator, link: Connection) -> None:
    emulation.install()
    x = data(comm.rank, LONG)
    kinds = [("float32", "sum"), ("float64", "max"), ("int16", "sum"), ("bfloat16", "avg")]
    arrays = [put(x.astype(numpy_dtype(dtype))) for dtype, _ in kinds]  # freed later: that waits for the calls
    comm.allreduce(arrays[0])
    comm.barrier()
    if comm.rank == 1:
        time.sleep(0.5)
    found = [comm.allreduce(array, op=op) for array, (_, op) in zip(arrays, kinds, strict=True)]
    for (dtype, op), out in zip(kinds, found, strict=True):
        same(out, comm.allreduce(x.astype(numpy_dtype(dtype)), op=op), dtype)


def test_no_kernel_is_loaded_while_another_waits_for_a_peer() -> None:
    """Kernels not launched before, while the first one waits: the emulated runtime would refuse to load them."""
    run(2, ahead_of_a_peer)


def replayed(comm: Communicator, link: Connection, window: bool) -> None:
    cuda: Any = emulation.install()
    made = cuda.Stream(0)
    stream = made.address
    for count, topology in ((SHORT, None), (LONG, "direct"), (LONG, "ring")):
        make: Any = (lambda x: placed(comm, x, "window")) if window else put
        a, out = make(data(0, count)), make(data(0, count))
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


@pytest.mark.parametrize("window", [False, True])
def test_captured_calls_are_replayed(window: bool) -> None:
    run(2, replayed, window)


def with_few_channels(comm: Communicator, link: Connection) -> None:
    emulation.install()
    for count in (SHORT, 7000, 100_000):
        x = data(comm.rank, count)
        for topology in ("direct", "ring"):
            expected = comm.allreduce(x, topology=topology)
            for most in (1, 2, 100):
                same(comm.allreduce(put(x), topology=topology, max_channels=most), expected, count, topology, most)


def test_max_channels() -> None:
    run(2, with_few_channels)


def test_packets_keep_to_max_channels(cuda: ModuleType) -> None:
    from pycollective.comm.cuda.signature import Signature
    from pycollective.comm.cuda.virtual import VirtualWorld

    world = VirtualWorld(2)
    for count in (1, 1000, 2000, 8000):
        for most in (0, 1, 2):
            s = Signature("allreduce", "float32", count, None, -1, "sum", None, (1.0, 1.0), most)
            planned = world.planner.plan(s, 0, False)
            if planned.plan.low_latency and most:
                assert planned.plan.channels <= most


def handles(comm: Communicator, link: Connection) -> None:
    emulation.install()
    x = data(comm.rank, LONG)
    several = [comm.iallreduce(put(x), topology=topology) for topology in TOPOLOGIES]
    for topology, handle in zip(TOPOLOGIES, several, strict=True):
        same(handle.result(timeout=20), comm.allreduce(x, topology=topology), topology)
        assert handle.test()
    handle = comm.iallgather(put(x))
    handle.wait()
    same(handle.result(), comm.allgather(x))


def test_handles() -> None:
    run(3, handles)


def barriers(comm: Communicator, link: Connection) -> None:
    cuda: Any = emulation.install()
    made = cuda.Stream(0)
    stream = made.address
    a = comm.empty(1, np.int32, device="cuda")
    for turn, topology in enumerate((None, "ring", None, "tree")):
        a.copy_from_host(np.full(1, turn, np.int32).view(np.uint8), stream)
        assert comm.barrier(stream=stream, topology=topology) is None
        handle = comm.ibarrier(stream=stream)
        handle.wait(20)
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


def test_barriers_in_a_stream() -> None:
    run(2, barriers)


def messages(comm: Communicator, link: Connection) -> None:
    emulation.install()
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


def test_messages() -> None:
    run(2, messages)


def mixed_with_cpu_calls(comm: Communicator, link: Connection) -> None:
    emulation.install()
    for turn in range(10):
        x = data(comm.rank + turn, SHORT if turn % 2 else LONG)
        same(comm.allreduce(put(x)), comm.allreduce(x))
        comm.barrier()


def test_cpu_calls_in_between() -> None:
    run(3, mixed_with_cpu_calls)


# -- without a path between the GPUs -----------------------------------------------------------------------------------


@pytest.mark.emulated
@pytest.mark.parametrize("knobs", [{"PC_EMULATED_NO_IPC": "1"}, {"PC_EMULATED_NO_IPC": "1", "PC_EMULATED_NO_VMM": "1"}])
@pytest.mark.filterwarnings("ignore:GPU arrays")
def test_other_ways(knobs: dict[str, str]) -> None:
    run(2, other_ways, len(knobs) == 2, env=knobs)


def other_ways(comm: Communicator, link: Connection, host: bool) -> None:
    cuda: Any = emulation.install()
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        every_collective(comm, link)
    text = "staged through host memory" if host else "cuda-vmm"
    assert [1 for warning in caught if text in str(warning.message)], [str(w.message) for w in caught]
    assert text in str(comm.explain("allreduce", 4 * LONG)), comm.explain("allreduce", 4 * LONG)
    a = comm.empty(LONG, np.float32, device="cuda")
    a.copy_from_host(data(comm.rank, LONG).view(np.uint8))
    same(comm.allreduce(a, out=a), comm.allreduce(data(comm.rank, LONG)))
    comm.iallreduce(a).wait()
    if host:
        made = cuda.Stream(0)
        stream = made.address
        cuda.begin_capture(stream)
        with pytest.raises(RuntimeError, match="cannot be captured"):
            comm.allreduce(a, out=a, stream=stream)
        cuda.end_capture(stream)
