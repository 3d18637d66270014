"""Many ranks on one (emulated) GPU: every collective, topology and element type, compared bitwise with CPU ranks."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

import pycollective as pc
from gpu.device import LONG, data, get, put
from pycollective import _core
from pycollective.comm.communicator import Communicator
from pycollective.schedule import describe

pytestmark = pytest.mark.usefixtures("cuda")

TOPOLOGIES = [row.name for row in describe()]


def both(size: int, call: Any) -> None:
    """Check that a call on device arrays and on host arrays gives the same bytes on every rank."""

    def work(comm: Communicator) -> None:
        x = data(comm.rank, LONG)
        expected = call(comm, x)
        found = call(comm, put(x))
        if expected is None:
            assert found is None
        else:
            assert found.shape == expected.shape
            assert get(found).tobytes() == np.ascontiguousarray(expected).tobytes()

    pc.local_world(size).run(work)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_allreduce_and_broadcast(topology: str, size: int) -> None:
    both(size, lambda comm, x: comm.allreduce(x, topology=topology))
    both(size, lambda comm, x: comm.broadcast(x, root=size - 1, topology=topology))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", ["reduce", "reduce_scatter", "allgather", "gather", "scatter", "alltoall"])
def test_every_other_collective(name: str, size: int) -> None:
    both(size, lambda comm, x: getattr(comm, name)(x))


@pytest.mark.parametrize("length", [0, 1, 2, 511, 1024, 4095, 4097])
def test_short_messages_have_the_bits_of_long_ones(length: int) -> None:
    """The low-latency path, its limits and longer messages."""

    def work(comm: Communicator) -> None:
        x = data(comm.rank, length)
        for name in (
            "allreduce",
            "broadcast",
            "reduce_scatter",
            "allgather",
            "alltoall",
            "gather",
            "scatter",
            "reduce",
        ):
            expected, found = getattr(comm, name)(x), getattr(comm, name)(put(x))
            if expected is not None:
                assert get(found).tobytes() == expected.tobytes(), name

    pc.local_world(3).run(work)


@pytest.mark.parametrize("dtype", _core.dtypes())
@pytest.mark.parametrize("length", [100, LONG])
def test_every_dtype_and_operator(dtype: str, length: int) -> None:
    def work(comm: Communicator) -> None:
        x = data(comm.rank, length, dtype)
        for op, _ in _core.operators():
            try:
                expected = comm.allreduce(x, op=op)
            except TypeError as error:
                with pytest.raises(TypeError, match="does not take"):
                    comm.allreduce(put(x), op=op)
                assert "does not take" in str(error)
                continue
            assert get(comm.allreduce(put(x), op=op)).tobytes() == expected.tobytes(), op

    pc.local_world(3).run(work)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "float64"])
@pytest.mark.parametrize("length", [100, LONG])
def test_scaling(dtype: str, length: int) -> None:
    def work(comm: Communicator) -> None:
        x = data(comm.rank, length, dtype)
        for options in ({"prescale": 3.0}, {"postscale": 0.5}, {"op": "avg", "prescale": 2.0, "postscale": 3.0}):
            expected = comm.allreduce(x, **options)
            assert get(comm.allreduce(put(x), **options)).tobytes() == expected.tobytes(), options

    pc.local_world(3).run(work)


def test_scaling_is_refused_where_the_cpu_refuses_it() -> None:
    def work(comm: Communicator) -> None:
        for dtype, op in (("bool", "sum"), ("int32", "bor"), ("float32", "land"), ("uint8", "bxor")):
            for length in (8, 4 * LONG):
                x = data(comm.rank, length, dtype)
                for array in (x, put(x)):
                    with pytest.raises(TypeError, match="prescale"):
                        comm.allreduce(array, op=op, prescale=2.0)

    pc.local_world(2).run(work)


def test_in_place_and_out() -> None:
    def work(comm: Communicator) -> None:
        for length in (10, LONG):
            x = data(comm.rank, length)
            for topology in TOPOLOGIES:
                expected = comm.allreduce(x, topology=topology)
                a = put(x)
                assert comm.allreduce(a, out=a, topology=topology) is a
                assert get(a).tobytes() == expected.tobytes(), (topology, length)
            # One rank in place, the others not.
            a, b = put(x), put(x)
            got = comm.allreduce(a, out=a if comm.rank == 0 else b)
            assert get(got).tobytes() == comm.allreduce(x).tobytes()

    pc.local_world(3).run(work)


def test_misaligned_and_odd_pieces(cuda: ModuleType) -> None:
    """Views that do not begin at 16 bytes, the same on all ranks or not."""

    def work(comm: Communicator) -> None:
        x = data(comm.rank, LONG)
        whole = put(x)
        for skip in (1, 3, comm.rank):
            part = cuda.DeviceArray(whole, whole.address + 4 * skip, (LONG - 8,), "float32", 0)
            host = x[skip : skip + LONG - 8]
            expected = comm.allreduce(np.ascontiguousarray(host))
            assert get(comm.allreduce(part)).tobytes() == expected.tobytes()
            assert (
                get(comm.broadcast(part, root=1)).tobytes() == comm.broadcast(np.ascontiguousarray(host), 1).tobytes()
            )

    pc.local_world(3).run(work)


def test_max_channels_changes_no_bit() -> None:
    def work(comm: Communicator) -> None:
        x = data(comm.rank, 100_000)
        results = [get(comm.allreduce(put(x), topology="ring", max_channels=c)) for c in (None, 1, 2)]
        assert all(result.tobytes() == results[0].tobytes() for result in results)

    pc.local_world(2).run(work)


@pytest.mark.parametrize("most", [1, 3])
def test_a_setting_limits_the_blocks(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from pycollective.comm.cuda.virtual import VirtualWorld

    unlimited = VirtualWorld(2).channels
    monkeypatch.setenv("PYCOLLECTIVE_CUDA_BLOCKS", str(most))
    assert VirtualWorld(2).channels == most < unlimited


def test_streams_have_the_greatest_priority(cuda: ModuleType) -> None:
    """Calls do not queue behind the kernels of a backward pass."""
    assert cuda.Stream(0).priority < 0


def test_a_captured_call_is_replayed(cuda: ModuleType) -> None:
    """The counters are in device memory: each replay continues from the last call."""
    from pycollective.comm import request
    from pycollective.comm.cuda.virtual import VirtualWorld

    world, stream = VirtualWorld(3), cuda.Stream(0)
    for length in (64, LONG):
        inputs = [put(data(rank, length)) for rank in range(3)]
        outputs = [put(np.zeros(length, np.float32)) for _ in range(3)]
        requests = [
            request.read("allreduce", x, out, None, {"stream": stream.address})
            for x, out in zip(inputs, outputs, strict=True)
        ]
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
    from pycollective.comm import request
    from pycollective.comm.cuda.virtual import VirtualWorld

    ranks = range(3)
    world, streams = VirtualWorld(3), [cuda.Stream(0) for _ in range(3)]
    sums = [data(10 * i, LONG) + data(10 * i + 1, LONG) + data(10 * i + 2, LONG) for i in range(3)]
    outputs = [[put(np.zeros(LONG, np.float32)) for _ in ranks] for _ in streams]

    def requests(i: int) -> list[request.CallRequest]:
        options: Any = {"stream": streams[i].address}
        return [
            request.read("allreduce", put(data(10 * i + rank, LONG)), outputs[i][rank], None, options) for rank in ranks
        ]

    made = [requests(i) for i in range(3)]
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


def test_streams_are_ordered(cuda: ModuleType) -> None:
    """Calls on different streams run in order; a call sees earlier work in its stream."""

    def work(comm: Communicator) -> None:
        streams = [cuda.Stream(0) for _ in range(2)]
        x = data(comm.rank, LONG)
        a = put(np.zeros(LONG, np.float32))
        b = put(x)
        for stream in streams * 3:
            cuda.copy(a.address, b.address, a.nbytes, stream.address)
            out = comm.allreduce(a, stream=stream.address)
            assert get(out, stream.address).tobytes() == comm.allreduce(x).tobytes()

    pc.local_world(2).run(work)


def test_calls_that_do_not_match_raise_on_every_rank() -> None:
    def work(comm: Communicator) -> str:
        with pytest.raises(pc.MismatchError) as caught:
            comm.allreduce(put(data(comm.rank, 10 + comm.rank)))
        return str(caught.value)

    for text in pc.local_world(2).run(work):
        assert "10 float32" in text and "11 float32" in text


def test_a_rank_that_does_not_come() -> None:
    def work(comm: Communicator) -> None:
        comm.allreduce(put(data(comm.rank, 10)))
        if comm.rank == 0:
            with pytest.raises(pc.TimeoutError, match="rank 1"):
                comm.allreduce(put(data(0, 10)), timeout=0.2)

    pc.local_world(2).run(work)


def test_a_rank_that_fails() -> None:
    def work(comm: Communicator) -> None:
        comm.allreduce(put(data(comm.rank, 10)))
        if comm.rank == 1:
            raise ValueError("on purpose")
        with pytest.raises(pc.PeerLostError):
            comm.allreduce(put(data(0, 10)))

    with pytest.raises(ValueError, match="on purpose"):
        pc.local_world(2).run(work)


def test_handles() -> None:
    def work(comm: Communicator) -> None:
        x = data(comm.rank, LONG)
        handle = comm.iallreduce(put(x), topology="ring")
        assert get(handle.result(timeout=30)).tobytes() == comm.allreduce(x, topology="ring").tobytes()
        assert handle.test()

    pc.local_world(2).run(work)


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


def test_windows_and_subgroups() -> None:
    def work(comm: Communicator) -> None:
        x = data(comm.rank, LONG)
        window = comm.empty((LONG // 3, 3), "float32", device="cuda")
        assert window.shape == (LONG // 3, 3)
        window.copy_from_host(x.view(np.uint8))
        comm.allreduce(window, out=window)
        assert get(window).tobytes() == comm.allreduce(x).tobytes()
        half = comm.split(comm.rank % 2)
        assert half is not None
        assert get(half.allreduce(put(x))).tobytes() == half.allreduce(x).tobytes()

    pc.local_world(4).run(work)


def test_a_world_that_has_no_room_says_so() -> None:
    assert pc.local_world(2, device="cuda").run(lambda comm: comm.rank) == [0, 1]
    with pytest.raises(pc.CommunicatorError, match="no CUDA device 7"):
        pc.local_world(2, device="cuda:7")
    with pytest.raises(pc.CommunicatorError, match="at most 32 ranks"):
        pc.local_world(33, device=0)
    with pytest.raises(ValueError, match="cuda"):
        pc.local_world(2, device="gpu")
