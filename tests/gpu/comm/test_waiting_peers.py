"""While a kernel waits for a peer, the host's other work neither hangs nor does harm.

The emulated runtime refuses operations that a GPU might do only when it is idle: loading a kernel and, if configured,
allocating.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from processes import Job

import pycollective as pc
from gpu import emulation
from gpu.device import LONG, data, get, in_window, put, same
from gpu.ranks import on_processes
from pycollective import Communicator
from pycollective.comm import request
from pycollective.comm.arguments.arrays import numpy_dtype
from pycollective.comm.cuda import deferred_free, planner, team, virtual
from pycollective.comm.cuda.runtime import load
from pycollective.schedule import describe

pytestmark = pytest.mark.usefixtures("cuda")


def wait_for_go(comm: Communicator, link: Connection) -> None:
    """Rank 1 waits for the test's signal, while the others' calls wait for it."""
    if comm.rank == 1:
        assert link.poll(60)
        link.recv()


def run(body: Callable[..., None], *arguments: Any, seconds: float = 0) -> None:
    """Run a body on two ranks; rank 1 gets its signal that long after rank 0's message."""
    with Job(2, body, *arguments) as job:
        job.hear(0)
        time.sleep(seconds)
        job.link[1].send("go")
        job.results(60)


def new_plans(comm: Communicator, link: Connection) -> None:
    """Covers other topologies, and kernels that were not launched before, which nothing may load now."""
    emulation.install()
    x = put(data(comm.rank, LONG))
    outs = [put(np.zeros(LONG, np.float32)) for _ in range(8)]
    kinds = [("float64", "max"), ("int16", "sum"), ("bfloat16", "avg")]
    hosts = [data(comm.rank, LONG).astype(numpy_dtype(dtype)) for dtype, _ in kinds]
    others = [put(host) for host in hosts]
    comm.allreduce(x, out=outs[0])
    comm.barrier()
    wait_for_go(comm, link)
    os.environ["PC_EMULATED_STRICT_ALLOCATION"] = "1"
    comm.allreduce(x, out=outs[0], timeout=60)  # rank 0's waits from here on
    for out, topology in zip(outs, [row.name for row in describe()], strict=False):
        comm.allreduce(x, out=out, topology=topology, timeout=60)
    for other, (_, op) in zip(others, kinds, strict=True):
        comm.allreduce(other, out=other, op=op, timeout=60)
    del os.environ["PC_EMULATED_STRICT_ALLOCATION"]
    link.send("enqueued")
    expected = comm.allreduce(data(comm.rank, LONG))
    np.testing.assert_allclose(get(outs[0]), expected, rtol=1e-6)
    for host, other, kind in zip(hosts, others, kinds, strict=True):
        same(other, comm.allreduce(host, op=kind[1]), kind)


def test_new_plans_need_no_allocation_and_load_no_kernel() -> None:
    run(new_plans)


def evicted_in_flight(comm: Communicator, link: Connection) -> None:
    """More plans than their memory has room for, while a call of the first of them is in flight on rank 0."""
    emulation.install()
    planner.MOST_PLANS, team.PLAN_BYTES = 1, 256
    x, expected = put(data(comm.rank, LONG)), comm.allreduce(data(comm.rank, LONG), topology="ring")
    outs = [put(np.zeros(LONG - 1000 * i, np.float32)) for i in range(4)]
    parts = [load().DeviceArray(x, x.address, out.shape, "float32", 0) for out in outs]
    comm.allreduce(parts[0], out=outs[0], topology="ring")
    get(outs[0])
    comm.barrier()
    wait_for_go(comm, link)
    for part, out in zip(parts[1:], outs[1:], strict=True):
        comm.allreduce(part, out=out, topology="ring", timeout=60)
        if out is outs[1]:
            link.send("enqueued")
    for out in outs:  # of two contributions: any order has the same bits
        same(out, expected[: out.shape[0]])


def test_memory_of_a_plan_is_not_reused_while_its_call_is_in_flight() -> None:
    run(evicted_in_flight, seconds=0.3)  # rank 0 then needs plans for which there is no room


class Sums:
    """Allreduces of the first elements of two arrays per rank, on a virtual world of three ranks."""

    def __init__(self, cuda: ModuleType, most: int) -> None:
        self.world, self._stream = virtual.VirtualWorld(3), cuda.Stream(0)
        self._arrays = [(put(data(rank, most)), put(np.zeros(most, np.float32))) for rank in range(3)]
        self._expected = sum(data(rank, most) for rank in range(3))

    def run(self, count: int) -> None:
        options: Any = {"topology": "direct", "stream": self._stream.address}
        parts = [
            [load().DeviceArray(array, array.address, (count,), "float32", 0) for array in arrays]
            for arrays in self._arrays
        ]
        self.world.run([request.read("allreduce", *pair, None, options) for pair in parts], self._stream.address)

    def check(self, count: int) -> None:
        for _, out in self._arrays:
            assert get(out, self._stream.address)[:count].tobytes() == self._expected[:count].tobytes(), count
        assert self.world.team.fault() is None


def test_the_pool_takes_evicted_plans_back(cuda: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """More plans than the cache keeps, in memory for few: evicted ones make room, and results stay right."""
    monkeypatch.setattr(planner, "MOST_PLANS", 3)
    monkeypatch.setattr(virtual, "PLAN_BYTES", 32 << 10)
    sums = Sums(cuda, LONG + 40)
    begin, _ = sums.world.team.plan_memory
    for count in range(LONG, LONG + 40):
        sums.run(count)
    capacity, taken = sums.world.team.plan_memory
    assert taken > 0 and capacity <= 2 * begin, "the memory of destroyed plans is reused"
    sums.check(LONG)


def test_the_pool_grows_for_plans_that_stay(cuda: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "PLAN_BYTES", 4 << 10)
    sums = Sums(cuda, LONG + 20)
    begin, _ = sums.world.team.plan_memory
    for count in [*range(LONG, LONG + 20)] * 2:  # the second time with the plans of the first
        sums.run(count)
        sums.check(count)
    assert sums.world.team.plan_memory[0] > begin


def own_operator(comm: Communicator, link: Connection) -> None:
    emulation.install()
    farther = pc.op(lambda a, b: a if abs(a) >= abs(b) else b)
    farther.address("float32")  # compiled for CPUs: the kernels call it
    x, out = put(data(comm.rank, LONG)), put(np.zeros(LONG, np.float32))
    comm.allreduce(x, out=out)
    comm.barrier()
    wait_for_go(comm, link)
    comm.allreduce(x, out=out, timeout=60)
    link.send("enqueued")
    comm.allreduce(x, out=out, op=farther, timeout=60)  # loaded when the previous call has completed
    same(out, comm.allreduce(data(comm.rank, LONG), op=farther))


def test_an_operator_is_loaded_between_calls() -> None:
    pytest.importorskip("numba")
    run(own_operator)


def dropped(comm: Communicator, link: Connection, what: str) -> None:
    cuda: Any = emulation.install()
    host = data(comm.rank, LONG)
    x, out, window = put(host), put(np.zeros_like(host)), in_window(comm, host)
    comm.allreduce(x, out=out, timeout=60)
    if what == "team":
        del window
    get(out)
    comm.barrier()
    wait_for_go(comm, link)
    if what == "team":
        if comm.rank == 0:
            comm.allreduce(x, out=out, timeout=60)
            comm.gpu = None
            link.send("dropped")
        return
    comm.allreduce(x, out=out, timeout=60)
    comm.allreduce(window, out=window, timeout=60)
    if comm.rank == 1:
        same(window, comm.allreduce(host))
        return
    del window, x
    link.send("dropped")
    comm.allreduce(host)
    cuda.synchronize(0)
    deferred_free.free_closed()
    assert not deferred_free.is_waiting(), "it is closed later"


@pytest.mark.parametrize("what", ["arrays", "team"])
def test_destructors_do_not_wait_for_a_peer(what: str) -> None:
    """Rank 1 does not call before rank 0's arrays, or its team, are destroyed; kernels wait for it for a minute."""
    run(dropped, what)


@pytest.mark.emulated
@on_processes(2, env={"PC_EMULATED_GLOBAL_CAPTURE": "1"})
def test_a_capture_on_one_thread_does_not_disturb_the_others(comm: Communicator) -> None:
    """All GPU operations of a rank, while another of its threads captures a stream in the strictest mode."""
    cuda: Any = load()
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
        same(comm.allreduce(put(x)), comm.allreduce(x))  # also sets up the GPU side
        window = in_window(comm, x)
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
    same(comm.allreduce(x), data(0, LONG))
    pc.shutdown()
