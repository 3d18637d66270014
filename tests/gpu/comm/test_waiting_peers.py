"""While a kernel waits for a peer, the host's other work neither hangs nor does harm.

The emulated runtime refuses operations that a GPU might do only when it is idle: loading a kernel and, if configured,
allocating.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from processes import Job, run

import pycollective as pc
from gpu import emulation
from gpu.device import LONG, data, get, put
from pycollective import Communicator
from pycollective.comm import request
from pycollective.comm.cuda import planner
from pycollective.schedule import describe

pytestmark = pytest.mark.usefixtures("cuda")


def wait_for_go(comm: Communicator, link: Connection) -> None:
    """Rank 1 waits for the test's signal, while the others' calls wait for it."""
    if comm.rank == 1:
        assert link.poll(60)
        link.recv()


def new_plans(comm: Communicator, link: Connection) -> None:
    emulation.install()
    x = put(data(comm.rank, LONG))
    outs = [put(np.zeros(LONG, np.float32)) for _ in range(8)]
    comm.allreduce(x, out=outs[0])
    comm.barrier()
    wait_for_go(comm, link)
    os.environ["PC_EMULATED_STRICT_ALLOCATION"] = "1"
    comm.allreduce(x, out=outs[0], timeout=60)  # rank 0's waits from here on
    for out, topology in zip(outs, [row.name for row in describe()], strict=False):
        comm.allreduce(x, out=out, topology=topology, timeout=60)
    del os.environ["PC_EMULATED_STRICT_ALLOCATION"]
    link.send("enqueued")
    expected = comm.allreduce(data(comm.rank, LONG))
    np.testing.assert_allclose(get(outs[0]), expected, rtol=1e-6)


def test_new_plans_need_no_allocation() -> None:
    with Job(2, new_plans) as job:
        assert job.hear(0) == "enqueued"
        job.link[1].send("go")
        job.results()


def evicted_in_flight(comm: Communicator, link: Connection) -> None:
    """More plans than their memory has room for, while a call of the first of them is in flight on rank 0."""
    emulation.install()
    from pycollective.comm.cuda import team

    planner.MOST_PLANS, team.PLAN_BYTES = 1, 256
    x, expected = put(data(comm.rank, LONG)), comm.allreduce(data(comm.rank, LONG), topology="ring")
    outs = [put(np.zeros(LONG - 1000 * i, np.float32)) for i in range(4)]
    cuda: Any = team.load()
    parts = [cuda.DeviceArray(x, x.address, out.shape, "float32", 0) for out in outs]
    comm.allreduce(parts[0], out=outs[0], topology="ring")
    get(outs[0])
    comm.barrier()
    wait_for_go(comm, link)
    for part, out in zip(parts[1:], outs[1:], strict=True):
        comm.allreduce(part, out=out, topology="ring", timeout=60)
        if out is outs[1]:
            link.send("enqueued")
    for out in outs:  # of two contributions: any order has the same bits
        assert get(out).tobytes() == expected[: out.shape[0]].tobytes()


def test_memory_of_a_plan_is_not_reused_while_its_call_is_in_flight() -> None:
    with Job(2, evicted_in_flight) as job:
        assert job.hear(0) == "enqueued"
        time.sleep(0.3)  # rank 0 then needs plans for which there is no room
        job.link[1].send("go")
        job.results()


def test_the_pool_takes_evicted_plans_back(cuda: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """More plans than the cache keeps, in memory for few: evicted ones make room, and results stay right."""
    from pycollective.comm.cuda import virtual

    monkeypatch.setattr(planner, "MOST_PLANS", 3)
    monkeypatch.setattr(virtual, "PLAN_BYTES", 32 << 10)
    world, stream = virtual.VirtualWorld(3), cuda.Stream(0)
    inputs = [put(data(rank, LONG + 40)) for rank in range(3)]
    outputs = [put(np.zeros(LONG + 40, np.float32)) for _ in range(3)]
    begin, _ = world.team.plan_memory
    expected = sum(data(rank, LONG + 40) for rank in range(3))
    for count in range(LONG, LONG + 40):
        world.run(_requests(cuda, inputs, outputs, count, stream), stream.address)
        _, taken = world.team.plan_memory
    assert taken > 0
    capacity, _ = world.team.plan_memory
    assert capacity <= 2 * begin, "the memory of destroyed plans is reused"
    for out in outputs:
        assert get(out, stream.address)[:LONG].tobytes() == expected[:LONG].tobytes()
    assert world.team.fault() is None


def test_the_pool_grows_for_plans_that_stay(cuda: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from pycollective.comm.cuda import virtual

    monkeypatch.setattr(virtual, "PLAN_BYTES", 4 << 10)
    world, stream = virtual.VirtualWorld(3), cuda.Stream(0)
    inputs = [put(data(rank, LONG + 20)) for rank in range(3)]
    outputs = [put(np.zeros(LONG + 20, np.float32)) for _ in range(3)]
    begin, _ = world.team.plan_memory
    for turn in range(2):  # the second time with the plans of the first
        for count in range(LONG, LONG + 20):
            world.run(_requests(cuda, inputs, outputs, count, stream), stream.address)
            total = sum(data(rank, LONG + 20)[:count] for rank in range(3))
            assert get(outputs[1], stream.address)[:count].tobytes() == total.tobytes(), (turn, count)
    assert world.team.plan_memory[0] > begin


def _requests(cuda: ModuleType, inputs: list[Any], outputs: list[Any], count: int, stream: Any) -> list[Any]:
    options: Any = {"topology": "direct", "stream": stream.address}
    made = []
    for x, out in zip(inputs, outputs, strict=True):
        parts = [cuda.DeviceArray(array, array.address, (count,), "float32", 0) for array in (x, out)]
        made.append(request.read("allreduce", parts[0], parts[1], None, options))
    return made


def own_operator(comm: Communicator, link: Connection) -> None:
    emulation.install()
    farther = pc.op(lambda a, b: a if abs(a) >= abs(b) else b)
    farther.address("float32")  # compiled for CPUs: the kernels call it
    x, out = put(data(comm.rank, LONG)), put(np.zeros(LONG, np.float32))
    comm.allreduce(x, out=out)
    comm.barrier()
    if comm.rank == 0:
        comm.allreduce(x, out=out, timeout=60)
        link.send("enqueued")
    else:
        wait_for_go(comm, link)
        comm.allreduce(x, out=out, timeout=60)
    comm.allreduce(x, out=out, op=farther, timeout=60)  # loaded when the previous call has completed
    assert get(out).tobytes() == comm.allreduce(data(comm.rank, LONG), op=farther).tobytes()


def test_an_operator_is_loaded_between_calls() -> None:
    pytest.importorskip("numba")
    with Job(2, own_operator) as job:
        assert job.hear(0) == "enqueued"
        job.link[1].send("go")
        job.results(60)


def dropped(comm: Communicator, link: Connection, what: str) -> None:
    cuda: Any = emulation.install()
    x, out = put(data(comm.rank, LONG)), put(np.zeros(LONG, np.float32))
    window = comm.empty(LONG, np.float32, device="cuda")
    window.copy_from_host(data(comm.rank, LONG).view(np.uint8))
    comm.allreduce(x, out=out, timeout=60)
    if what == "team":
        del window
    get(out)
    comm.barrier()
    if comm.rank == 1:
        wait_for_go(comm, link)
        if what != "team":
            comm.allreduce(x, out=out, timeout=60)
            comm.allreduce(window, out=window, timeout=60)
            assert get(window).tobytes() == comm.allreduce(data(comm.rank, LONG)).tobytes()
        return
    comm.allreduce(x, out=out, timeout=60)
    if what == "team":
        comm.gpu = None
        link.send("dropped")
        return
    comm.allreduce(window, out=window, timeout=60)
    del window, x
    link.send("dropped")
    comm.allreduce(data(comm.rank, LONG))
    cuda.synchronize(0)
    from pycollective.comm.cuda import deferred_free

    deferred_free.free_closed()
    assert not deferred_free.is_waiting(), "it is closed later"


@pytest.mark.parametrize("what", ["arrays", "team"])
def test_destructors_do_not_wait_for_a_peer(what: str) -> None:
    """Rank 1 does not call before rank 0's arrays, or its team, are destroyed; kernels wait for it for a minute."""
    with Job(2, dropped, what) as job:
        assert job.hear(0) == "dropped"
        job.link[1].send("go")
        job.results()


def beside_a_capture(comm: Communicator, link: Connection) -> None:
    """All GPU operations of a rank, while another of its threads captures a stream in the strictest mode."""
    cuda: Any = emulation.install()
    captured, begun, ends = cuda.Stream(0), threading.Event(), threading.Event()

    def capture() -> None:
        cuda.begin_capture(captured.address)
        begun.set()
        ends.wait(60)
        cuda.end_capture(captured.address)

    thread = threading.Thread(target=capture)
    thread.start()
    assert begun.wait(60)
    try:
        x = data(comm.rank, LONG)
        assert get(comm.allreduce(put(x))).tobytes() == comm.allreduce(x).tobytes()  # also sets up the GPU side
        window = comm.empty(LONG, np.float32, device="cuda")
        window.copy_from_host(x.view(np.uint8))
        handle = comm.iallreduce(window, out=window, topology="ring")
        handle.wait(60)
        assert handle.test() and get(window).tobytes() == comm.allreduce(x, topology="ring").tobytes()
        del window, handle
        comm.barrier()
        comm.free()
    finally:
        ends.set()
        thread.join()


@pytest.mark.emulated
def test_a_capture_on_one_thread_does_not_disturb_the_others() -> None:
    run(2, beside_a_capture, env={"PC_EMULATED_GLOBAL_CAPTURE": "1"})


@pytest.mark.emulated
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (101, "pending before this call.*not by pycollective: cudaErrorInvalidDevice"),
        (700, "a kernel has failed before this call.*cudaErrorIllegalAddress"),
    ],
)
def test_an_error_of_other_code_is_reported_as_such(built: Path, error: int, text: str) -> None:
    comm, x = pc.init(), put(data(0, LONG))
    comm.allreduce(x)
    other = comm.dup()
    other.allreduce(x)
    ctypes.CDLL(str(built)).pc_emulated_leave_error(error)
    other.free()  # leaves it pending
    with pytest.raises(pc.CommunicatorError, match=text):
        comm.allreduce(x)
    # It was reported once, and (but for a fault of a kernel of a real GPU) the communicator still works.
    assert get(comm.allreduce(x)).tobytes() == data(0, LONG).tobytes()
    pc.shutdown()
