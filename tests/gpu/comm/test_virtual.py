"""Many ranks on one (emulated) GPU: every collective and topology, compared bitwise with CPU ranks."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from calls import MOVING, REDUCING, on_each_rank

import pycollective as pc
from gpu.device import LONG, data, get, in_window, put, same
from pycollective.comm import request
from pycollective.comm.communicator import Communicator
from pycollective.comm.cuda.virtual import VirtualWorld
from pycollective.schedule import describe

pytestmark = pytest.mark.usefixtures("cuda")

TOPOLOGIES = [row.name for row in describe()]


@pytest.mark.parametrize("topology", TOPOLOGIES)
@on_each_rank(1, 2, 3, 4)
def test_allreduce_and_broadcast(comm: Communicator, topology: str) -> None:
    x, root = data(comm.rank, LONG), comm.size - 1
    same(comm.allreduce(put(x), topology=topology), comm.allreduce(x, topology=topology))
    same(comm.broadcast(put(x), root, topology=topology), comm.broadcast(x, root, topology=topology))


@pytest.mark.parametrize("name", (*REDUCING, *MOVING))
@on_each_rank(2, 3)
def test_every_collective(comm: Communicator, name: str) -> None:
    """The low-latency path, its limits and longer messages: short ones have the bits of long ones."""
    for length in (0, 1, 2, 511, 1024, 4095, 4097, LONG):
        x = data(comm.rank, length)
        same(getattr(comm, name)(put(x)), getattr(comm, name)(x), length)


@on_each_rank(3)
def test_in_place_and_out(comm: Communicator) -> None:
    for length in (10, LONG):
        x = data(comm.rank, length)
        for topology in TOPOLOGIES:
            expected = comm.allreduce(x, topology=topology)
            a = put(x)
            assert comm.allreduce(a, out=a, topology=topology) is a
            same(a, expected, topology, length)
        a, b = put(x), put(x)
        same(comm.allreduce(a, out=a if comm.rank == 0 else b), comm.allreduce(x), "one rank in place", length)


@on_each_rank(3)
def test_misaligned_and_odd_pieces(comm: Communicator, cuda: ModuleType) -> None:
    """Views that do not begin at 16 bytes, the same on all ranks or not."""
    x = data(comm.rank, LONG)
    whole = put(x)
    for skip in (1, 3, comm.rank):
        part = cuda.DeviceArray(whole, whole.address + 4 * skip, (LONG - 8,), "float32", 0)
        host = x[skip : skip + LONG - 8].copy()
        same(comm.allreduce(part), comm.allreduce(host), skip)
        same(comm.broadcast(part, root=1), comm.broadcast(host, root=1), skip)


@pytest.mark.parametrize("most", [1, 3])
def test_a_setting_limits_the_blocks(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = VirtualWorld(2).channels
    monkeypatch.setenv("PYCOLLECTIVE_CUDA_BLOCKS", str(most))
    assert VirtualWorld(2).channels == most < unlimited


def test_streams_have_the_greatest_priority(cuda: ModuleType) -> None:
    """Calls do not queue behind the kernels of a backward pass."""
    assert cuda.Stream(0).priority < 0


def test_a_captured_call_is_replayed(cuda: ModuleType) -> None:
    """The counters are in device memory: each replay continues from the last call."""
    world, stream = VirtualWorld(3), cuda.Stream(0)
    for length in (64, LONG):
        inputs = [put(data(rank, length)) for rank in range(3)]
        outputs = [put(np.zeros(length, np.float32)) for _ in range(3)]
        options: Any = {"stream": stream.address}
        requests = [request.read("allreduce", *arrays, None, options) for arrays in zip(inputs, outputs, strict=True)]
        cuda.begin_capture(stream.address)
        world.run(requests, stream.address)
        graph = cuda.end_capture(stream.address)
        for turn in range(5):
            fresh = [data(10 * turn + rank, length) for rank in range(3)]
            for x, values in zip(inputs, fresh, strict=True):
                x.copy_from_host(values.view(np.uint8), stream.address)
            graph.launch(stream.address)
            world.run(requests, stream.address)  # ordinary calls in between
            total = fresh[0] + fresh[1] + fresh[2]
            assert all(get(out, stream.address).tobytes() == total.tobytes() for out in outputs)
    assert world.team.fault() is None


def test_replays_are_ordered(cuda: ModuleType) -> None:
    """Graphs of two calls each, and ordinary calls, on three streams, enqueued without waiting: they run in order."""
    world, streams = VirtualWorld(3), [cuda.Stream(0) for _ in range(3)]
    sums = [data(10 * i, LONG) + data(10 * i + 1, LONG) + data(10 * i + 2, LONG) for i in range(3)]
    outputs = [[put(np.zeros(LONG, np.float32)) for _ in range(3)] for _ in streams]
    made = [
        [request.read("allreduce", put(data(10 * i + rank, LONG)), out, None, {"stream": streams[i].address})
         for rank, out in enumerate(outs)]
        for i, outs in enumerate(outputs)
    ]  # fmt: skip
    graphs = []
    for i in range(2):
        cuda.begin_capture(streams[i].address)
        for _ in range(2):
            world.run(made[i], streams[i].address)
        graphs.append(cuda.end_capture(streams[i].address))
    for turn in range(10):
        graphs[turn % 2].launch(streams[0].address)
        graphs[1 - turn % 2].launch(streams[1].address)
        world.run(made[2], streams[2].address)
        graphs[turn % 2].launch(streams[2].address)
    for stream in streams:
        cuda.synchronize(stream.address)
    assert world.team.fault() is None
    for expected, found in zip(sums, outputs, strict=True):
        assert all(get(out).tobytes() == expected.tobytes() for out in found)


@on_each_rank(2)
def test_streams_are_ordered(comm: Communicator, cuda: ModuleType) -> None:
    """Calls on different streams run in order; a call sees earlier work in its stream."""
    streams = [cuda.Stream(0) for _ in range(2)]
    x = data(comm.rank, LONG)
    a, b = put(np.zeros(LONG, np.float32)), put(x)
    for stream in streams * 3:
        cuda.copy(a.address, b.address, a.nbytes, stream.address)
        out = comm.allreduce(a, stream=stream.address)
        assert get(out, stream.address).tobytes() == comm.allreduce(x).tobytes()


@on_each_rank(2)
def test_calls_that_do_not_match_raise_on_every_rank(comm: Communicator) -> None:
    with pytest.raises(pc.MismatchError, match=r"(?s)10 float32.*11 float32|11 float32.*10 float32"):
        comm.allreduce(put(data(comm.rank, 10 + comm.rank)))


@on_each_rank(2)
def test_a_rank_that_does_not_come(comm: Communicator) -> None:
    comm.allreduce(put(data(comm.rank, 10)))
    if comm.rank == 0:
        with pytest.raises(pc.TimeoutError, match="rank 1"):
            comm.allreduce(put(data(0, 10)), timeout=0.2)


def test_a_rank_that_fails() -> None:
    def work(comm: Communicator) -> None:
        comm.allreduce(put(data(comm.rank, 10)))
        if comm.rank == 1:
            raise ValueError("on purpose")
        with pytest.raises(pc.PeerLostError):
            comm.allreduce(put(data(0, 10)))

    with pytest.raises(ValueError, match="on purpose"):
        pc.local_world(2).run(work)


@on_each_rank(2)
def test_handles(comm: Communicator) -> None:
    x = data(comm.rank, LONG)
    handle = comm.iallreduce(put(x), topology="ring")
    same(handle.result(timeout=30), comm.allreduce(x, topology="ring"))
    assert handle.test()


def test_a_handle_is_no_part_of_a_graph(cuda: ModuleType) -> None:
    comm, stream, x = pc.init(), cuda.Stream(0), put(data(0, 10))
    comm.allreduce(x, out=x, stream=stream.address)  # the first call sets up the communicator
    cuda.begin_capture(stream.address)
    with pytest.raises(ValueError, match="graph"):
        comm.iallreduce(x, out=x, stream=stream.address)
    comm.allreduce(x, out=x, stream=stream.address)
    cuda.end_capture(stream.address).launch(stream.address)
    assert get(x, stream.address).tobytes() == data(0, 10).tobytes()
    pc.shutdown()


@on_each_rank(4)
def test_windows_and_subgroups(comm: Communicator) -> None:
    x = data(comm.rank, (LONG // 3, 3))
    window = in_window(comm, x)
    comm.allreduce(window, out=window)
    same(window, comm.allreduce(x))
    half = comm.split(comm.rank % 2)
    assert half is not None
    same(half.allreduce(put(x)), half.allreduce(x))


def test_a_world_that_has_no_room_says_so() -> None:
    assert pc.local_world(2, device="cuda").run(lambda comm: comm.rank) == [0, 1]
    with pytest.raises(pc.CommunicatorError, match="no CUDA device 7"):
        pc.local_world(2, device="cuda:7")
    with pytest.raises(pc.CommunicatorError, match="at most 32 ranks"):
        pc.local_world(33, device=0)
    with pytest.raises(ValueError, match="cuda"):
        pc.local_world(2, device="gpu")
