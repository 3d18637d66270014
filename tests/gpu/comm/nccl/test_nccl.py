"""topology="nccl" between real processes, over an NCCL that works on emulated GPU memory."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from calls import MOVING, call
from processes import Job, all_say

import pycollective as pc
from gpu import emulation
from gpu.device import get, put, same
from gpu.ranks import on_processes, until_it_raises
from pycollective import Communicator
from pycollective.comm.arguments.arrays import numpy_dtype
from pycollective.comm.cuda.nccl.library import library
from pycollective.comm.cuda.runtime import load

NCCL = {
    "PYCOLLECTIVE_NCCL": str(emulation.NCCL),
    "PC_EMULATED_NCCL_VERSION": "23001",
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
}
"""Ranks that share the one emulated GPU, as NCCL 2.30 allows."""

pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("built")]


def compare(comm: Communicator, collective: str, x: Any, **options: Any) -> None:
    """Check that NCCL gives the CPU's result; of small whole numbers, which are exact in any order."""
    found = call(comm, collective, put(x), topology="nccl", **options)
    same(found, call(comm, collective, x, **options), collective, x.dtype, options)


@on_processes(2, 3, env=NCCL)
def test_reductions(comm: Communicator) -> None:
    types = [f"{sign}int{bits}" for bits in (8, 32, 64) for sign in ("", "u")]
    for name in (*types, "float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
        x = (np.arange(37) % 3 + comm.rank % 2).astype(numpy_dtype(name))
        for op in ("sum", "prod", "min", "max"):
            compare(comm, "allreduce", x, op=op)
    x = np.arange(37.0) * 2
    compare(comm, "allreduce", x, op="avg")
    a = put(x)
    assert comm.allreduce(a, out=a, topology="nccl") is a
    same(a, x * comm.size, "in place")
    for kind in ("f2", "f4", "f8", "i4"):
        compare(comm, "allreduce", np.arange(8).astype(kind) + comm.rank, prescale=4.0, postscale=0.5)
    compare(comm, "allreduce", np.full(4, comm.size, "f4"), op="avg", prescale=8.0, postscale=0.25)
    for op in ("lor", "land"):
        compare(comm, "allreduce", np.array([True, False, comm.rank == 0]), op=op)
    compare(comm, "reduce", np.arange(5) + comm.rank, root=1, op="max")
    for rows in (comm.size * 4, comm.size * 4 + 1):  # even shares, and uneven ones
        compare(comm, "reduce_scatter", np.arange(rows * 3.0).reshape(rows, 3) + comm.rank)
    comm.free()


@on_processes(3, env=NCCL)
def test_moves(comm: Communicator) -> None:
    n, me = comm.size, comm.rank
    for kind in ("i2", "f8", "?"):  # NCCL does not reduce 16-bit integers, but moves them
        for collective in MOVING:
            for root in (0, n - 1):
                compare(comm, collective, (np.arange(2 * n + 1) + 10 * me).astype(kind), root=root)
    rows = np.full(me + 1, me)
    same(comm.allgatherv(put(rows), [r + 1 for r in range(n)], topology="nccl"), comm.allgatherv(rows))
    sends = [(me + peer) % 3 for peer in range(n)]  # some of them empty
    rows = np.full(sum(sends), me)
    same(comm.alltoallv(put(rows), sends, topology="nccl"), comm.alltoallv(rows, sends))
    long = np.arange(100_000.0) + me  # longer than a mailbox
    compare(comm, "broadcast", long)
    compare(comm, "allreduce", long)
    same(comm.iallreduce(put(long), topology="nccl", max_channels=2).result(), comm.allreduce(long))
    found = comm.explain("allreduce", 4, topology="nccl")
    assert found.topology == "nccl" and "NCCL 2.30.1" in found.reason and "PYCOLLECTIVE_NCCL" in found.reason


@on_processes(2, env=NCCL)
def test_capture(comm: Communicator) -> None:
    cuda: Any = load()
    stream = cuda.Stream(0)
    x = put(np.ones(4))
    cuda.begin_capture(stream.address)
    with pytest.raises(pc.CommunicatorError, match="before the stream is captured"):
        comm.allreduce(x, out=x, topology="nccl", stream=stream.address)
    cuda.end_capture(stream.address)
    comm.allreduce(put(np.ones(1)), topology="nccl")
    cuda.begin_capture(stream.address)
    comm.allreduce(x, out=x, topology="nccl", stream=stream.address)
    graph = cuda.end_capture(stream.address)
    assert get(x).tolist() == [1.0] * 4
    for _ in range(3):
        graph.launch(stream.address)
    assert get(x, stream.address).tolist() == [float(comm.size**3)] * 4
    comm.check()


@on_processes(2, env=NCCL)
def test_refusals(comm: Communicator) -> None:
    x, own = put(np.ones(4, "i4")), pc.op(lambda a, b: a + b)

    def refused(text: str, x: Any, kind: type[Exception] = pc.CommunicatorError, **options: Any) -> None:
        with pytest.raises(kind, match=text):
            comm.allreduce(x, topology="nccl", **options)

    refused("for GPU arrays", np.ones(4), pc.TopologyError)
    refused("operator bxor", x, op="bxor")
    refused("int16", put(np.ones(4, "i2")))
    refused("by integers", x, prescale=0.5)
    refused("user-defined", x, op=own)
    assert get(comm.allreduce(x, topology="nccl")).tolist() == [comm.size] * 4  # nothing was sent, all is well
    with pytest.raises(pc.CommunicatorError, match="threads"):
        pc.local_world(2).run(lambda world: world.allreduce(put(np.ones(4)), topology="nccl"))
    comm.free()
    refused("freed", x)


@pytest.mark.parametrize(
    ("expected", "everywhere", "on_rank_1"),
    [
        ("rank 1: no NCCL can be used", {}, {"PYCOLLECTIVE_NCCL": "/nowhere/libnccl.so.2"}),
        ("rank 0 has NCCL version 23001, rank 1 23002", {}, {"PC_EMULATED_NCCL_VERSION": "23002"}),
        ("NCCL allows from 2.30 on", {"PC_EMULATED_NCCL_VERSION": "22907"}, {}),
        ("set NCCL_MULTI_RANK_GPU_ENABLE=1", {"NCCL_MULTI_RANK_GPU_ENABLE": "0"}, {}),
        ("NCCL_MAX_CTAS=100", {"NCCL_MAX_CTAS": "100"}, {}),
    ],
)
@on_processes(2, env=NCCL)
def test_no_communicator(
    comm: Communicator, expected: str, everywhere: dict[str, str], on_rank_1: dict[str, str]
) -> None:
    """Every rank raises, with the reason of the rank that failed."""
    os.environ.update(everywhere | (on_rank_1 if comm.rank == 1 else {}))
    with pytest.raises(pc.CommunicatorError, match=expected):
        comm.allreduce(put(np.ones(4)), topology="nccl")
    assert get(comm.allreduce(put(np.ones(4)))).tolist() == [2.0] * 4  # the other paths still work


@on_processes(1, env=NCCL)
def test_nccls_own_error(comm: Communicator) -> None:
    cuda: Any = load()
    made = library()
    nccl = cuda.NcclComm(made.handle, made.handle.unique_id(), 1, 0, 0, 0)
    assert nccl.settle(10)
    memory = cuda.allocate_plain(0, 64)
    with pytest.raises(pc.CommunicatorError) as caught:
        nccl.run("allreduce", memory.address, memory.address, 4, [], 99, 4, 0, b"", 0, 0, 5.0)
    assert str(caught.value) == "NCCL 2.30.1: ncclAllReduce: invalid argument; last error: no such data type: 99"
    nccl.abort()
    with pytest.raises(pc.CommunicatorError, match="aborted"):
        nccl.run("allreduce", memory.address, memory.address, 4, [], 0, 1, 0, b"", 0, 0, 5.0)


@pytest.mark.parametrize("other", ["of 5", "topology direct"])
@on_processes(2, env=NCCL)
def test_mismatch(comm: Communicator, other: str) -> None:
    comm.allreduce(put(np.ones(4)), topology="nccl")
    count = 5 if other == "of 5" and comm.rank else 4
    with pytest.raises(pc.MismatchError, match="topology nccl") as caught:
        get(comm.allreduce(put(np.ones(count)), topology=None if count == 4 and comm.rank else "nccl", timeout=20))
        raise until_it_raises(comm)
    assert other in str(caught.value)


@on_processes(2, env=NCCL)
def test_a_rank_that_does_not_come(comm: Communicator) -> None:
    comm.allreduce(put(np.ones(4)), topology="nccl")
    if comm.rank == 1:
        time.sleep(4)  # alive but inactive
        return
    begin = time.monotonic()
    with pytest.raises(pc.TimeoutError):
        comm.iallreduce(put(np.ones(4)), topology="nccl", timeout=0.5).wait()
    assert time.monotonic() - begin < 3


def killed(comm: Communicator, link: Connection, when: str) -> None:
    emulation.install()
    # In a meeting, the rank that dies never connects to the others by NCCL.
    comm.allreduce(put(np.ones(4)), topology="nccl" if when == "between" else None)
    comm.barrier()
    link.send("out of the barrier")  # where a rank may report the loss, too
    if comm.rank == 1:
        link.recv()  # and is killed
    begin = time.monotonic()
    with pytest.raises(pc.PeerLostError) as lost:
        comm.iallreduce(put(np.ones(4)), topology="nccl").wait()
    assert lost.value.rank == 1 and time.monotonic() - begin < 2
    with pytest.raises(pc.PeerLostError):
        comm.allreduce(put(np.ones(4)), topology="nccl")
    rest = comm.shrink()
    assert get(rest.allreduce(put(np.ones(4)), topology="nccl")).tolist() == [2.0] * 4
    rest.check()


@pytest.mark.parametrize("when", ["between", "meeting"])
@pytest.mark.parametrize("deaf", ["0", "1"])
def test_a_peer_is_killed(when: str, deaf: str) -> None:
    """Whether NCCL notices it or not: the survivors get an error within a second, and continue without it."""
    with Job(3, killed, when, env={**NCCL, "PC_EMULATED_NCCL_DEAF": deaf}) as job:
        all_say(job, "out of the barrier")
        if when == "meeting":
            time.sleep(0.5)
        job.kill(1)
        outcomes = job.outcomes()
        assert [(outcomes[rank].trace, outcomes[rank].exitcode) for rank in (0, 2)] == [("", 0)] * 2
