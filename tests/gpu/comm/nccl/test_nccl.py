"""topology="nccl" between real processes, over an NCCL that works on emulated GPU memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launch import Launched

OnRanks = Callable[..., Launched]
pytestmark = pytest.mark.emulated


@pytest.fixture
def nccl_ranks(on_ranks: OnRanks, built: Path) -> OnRanks:
    """Ranks that share the one emulated GPU, as NCCL 2.30 allows."""

    def run(n: int, function: Any, *args: object, env: dict[str, str] | None = None, **options: Any) -> Launched:
        settings = {
            "PYCOLLECTIVE_NCCL": str(built.with_name("libnccl.so.2")),
            "PC_EMULATED_NCCL_VERSION": "23001",
            "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        }
        return on_ranks(n, function, *args, env={**settings, **(env or {})}, **options)

    return run


def _reductions() -> None:
    import gpu.emulation

    gpu.emulation.install()
    import numpy as np

    import pycollective as pc
    from gpu.device import get, put
    from pycollective.comm.arguments.arrays import numpy_dtype

    comm = pc.init()
    n, me = comm.size, comm.rank
    types = [
        "int8",
        "uint8",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
    ]
    functions = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max}
    for name in types:
        all_ranks = np.stack([(np.arange(37) % 3 + r % 2).astype("f8") for r in range(n)])
        x = all_ranks[me].astype(numpy_dtype(name))
        for op, function in functions.items():
            want = function(all_ranks, axis=0).astype(numpy_dtype(name))
            found = get(comm.allreduce(put(x), op=op, topology="nccl"))
            assert found.dtype == x.dtype and np.array_equal(found.astype("f8"), want.astype("f8")), (name, op, found)
    doubled = np.arange(37.0) * 2 * n
    same = put(np.arange(37.0) * 2)
    assert comm.allreduce(same, out=same, topology="nccl") is same and np.array_equal(get(same), doubled)
    assert np.array_equal(get(comm.allreduce(put(np.arange(37.0) * 2), op="avg", topology="nccl")), np.arange(37.0) * 2)
    for kind in ("f2", "f4", "f8", "i4"):
        x = np.arange(8).astype(kind) + me
        got = get(comm.allreduce(put(x), topology="nccl", prescale=4.0, postscale=0.5))
        assert np.array_equal(got, 2 * sum(np.arange(8).astype(kind) + r for r in range(n))), (kind, got)
    got = get(comm.allreduce(put(np.full(4, n, "f4")), op="avg", topology="nccl", prescale=8.0, postscale=0.25))
    assert np.array_equal(got, np.full(4, 2 * n, "f4")), got
    flags = np.array([True, False, me == 0])
    assert get(comm.allreduce(put(flags), op="lor", topology="nccl")).tolist() == [True, False, True]
    assert get(comm.allreduce(put(flags), op="land", topology="nccl")).tolist() == [True, False, n == 1]
    got = comm.reduce(put(np.arange(5) + me), root=1, topology="nccl", op="max")
    assert np.array_equal(get(got), np.arange(5) + n - 1) if me == 1 else got is None
    for rows in (n * 4, n * 4 + 1):  # even shares, and uneven ones
        x = np.arange(rows * 3.0).reshape(rows, 3) + me
        want = np.array_split(sum(np.arange(rows * 3.0).reshape(rows, 3) + r for r in range(n)), n)[me]
        assert np.array_equal(get(comm.reduce_scatter(put(x), topology="nccl")), want)
    comm.free()
    print("fine", flush=True)


@pytest.mark.parametrize("n", [2, 3])
def test_reductions(nccl_ranks: OnRanks, n: int) -> None:
    ranks = nccl_ranks(n, _reductions, check=True)
    assert all("fine" in text for text in ranks)


def _moves() -> None:
    import gpu.emulation

    gpu.emulation.install()
    import numpy as np

    import pycollective as pc
    from gpu.device import get, put

    comm = pc.init()
    n, me = comm.size, comm.rank
    for kind in ("i2", "f8", "?"):  # NCCL does not reduce 16-bit integers, but moves them
        x = (np.arange(5) + me).astype(kind)
        every = [(np.arange(5) + r).astype(kind) for r in range(n)]
        assert np.array_equal(get(comm.broadcast(put(x), root=n - 1, topology="nccl")), every[-1])
        assert np.array_equal(get(comm.allgather(put(x), topology="nccl")), np.concatenate(every))
        gathered = comm.gather(put(x), root=0, topology="nccl")
        assert np.array_equal(get(gathered), np.concatenate(every)) if me == 0 else gathered is None
    rows = get(comm.allgatherv(put(np.full(me + 1, me)), [r + 1 for r in range(n)], topology="nccl"))
    assert rows.tolist() == [r for r in range(n) for _ in range(r + 1)]
    whole = np.arange(2 * n + 1)
    mine = get(comm.scatter(put(whole if me == 0 else whole * 0), topology="nccl"))
    assert np.array_equal(mine, np.array_split(whole, n)[me])
    mine = get(comm.alltoall(put(np.arange(2 * n) + 10 * me), topology="nccl"))
    assert mine.tolist() == [v + 10 * r for r in range(n) for v in (2 * me, 2 * me + 1)]
    sends = [(me + peer) % 3 for peer in range(n)]  # some of them empty
    mine = get(comm.alltoallv(put(np.full(sum(sends), me)), sends, topology="nccl"))
    assert mine.tolist() == [r for r in range(n) for _ in range((r + me) % 3)]
    long = np.arange(100_000.0) + me  # longer than a mailbox
    assert np.array_equal(get(comm.broadcast(put(long), topology="nccl")), np.arange(100_000.0))
    handle = comm.iallreduce(put(long), topology="nccl", max_channels=2)
    assert np.array_equal(get(handle.result()), sum(np.arange(100_000.0) + r for r in range(n)))
    comm.barrier(topology="nccl") if comm.gpu is None else None
    found = comm.explain("allreduce", 4, topology="nccl")
    assert found.topology == "nccl" and "NCCL 2.30.1" in found.reason and "PYCOLLECTIVE_NCCL" in found.reason
    print("fine", flush=True)


def test_moves(nccl_ranks: OnRanks) -> None:
    assert all("fine" in text for text in nccl_ranks(3, _moves, check=True))


def _capture() -> None:
    import gpu.emulation

    cuda = gpu.emulation.install()
    import numpy as np

    import pycollective as pc
    from gpu.device import get, put

    comm = pc.init()
    stream = cuda.Stream(0)
    x = put(np.ones(4))
    cuda.begin_capture(stream.address)
    try:
        comm.allreduce(x, out=x, topology="nccl", stream=stream.address)
        print("captured at once")
    except pc.CommunicatorError as error:
        assert "before the stream is captured" in str(error), error
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
    print("fine", flush=True)


def test_capture(nccl_ranks: OnRanks) -> None:
    assert list(nccl_ranks(2, _capture, check=True)) == ["fine\n"] * 2


def _refusals() -> None:
    import gpu.emulation

    gpu.emulation.install()
    import numpy as np

    import pycollective as pc
    from gpu.device import get, put

    comm = pc.init()

    def refused(kind: type[Exception], text: str, call: object) -> None:
        try:
            call()
        except kind as error:
            assert text in str(error), error
        else:
            raise AssertionError(text)

    x = put(np.ones(4, "i4"))
    refused(pc.TopologyError, "for GPU arrays", lambda: comm.allreduce(np.ones(4), topology="nccl"))
    refused(pc.CommunicatorError, "operator bxor", lambda: comm.allreduce(x, op="bxor", topology="nccl"))
    refused(pc.CommunicatorError, "int16", lambda: comm.allreduce(put(np.ones(4, "i2")), topology="nccl"))
    refused(pc.CommunicatorError, "by integers", lambda: comm.allreduce(x, prescale=0.5, topology="nccl"))
    own = pc.op(lambda a, b: a + b)
    refused(pc.CommunicatorError, "user-defined", lambda: comm.allreduce(x, op=own, topology="nccl"))
    assert get(comm.allreduce(x, topology="nccl")).tolist() == [comm.size] * 4  # nothing was sent, all is well

    def on_threads(world: pc.Communicator) -> None:
        world.allreduce(put(np.ones(4)), topology="nccl")

    refused(pc.CommunicatorError, "threads", lambda: pc.local_world(2).run(on_threads))
    comm.free()
    refused(pc.CommunicatorError, "freed", lambda: comm.allreduce(x, topology="nccl"))
    print("fine", flush=True)


def test_refusals(nccl_ranks: OnRanks) -> None:
    assert all("fine" in text for text in nccl_ranks(2, _refusals, check=True))


def _no_communicator(expected: str, lacking: str = "") -> None:
    import os

    if os.environ["PYCOLLECTIVE_RANK"] == "1" and lacking:
        name, _, value = lacking.partition("=")
        os.environ[name] = value
    import gpu.emulation

    gpu.emulation.install()
    import numpy as np

    import pycollective as pc
    from gpu.device import get, put

    comm = pc.init()
    try:
        comm.allreduce(put(np.ones(4)), topology="nccl")
    except pc.CommunicatorError as error:
        assert expected in str(error), error
    else:
        raise AssertionError("went through")
    assert get(comm.allreduce(put(np.ones(4)))).tolist() == [2.0] * 4  # the other paths still work
    print("fine", flush=True)


@pytest.mark.parametrize(
    ("expected", "lacking", "env"),
    [
        ("rank 1: no NCCL can be used", "PYCOLLECTIVE_NCCL=/nowhere/libnccl.so.2", {}),
        ("rank 0 has NCCL version 23001, rank 1 23002", "PC_EMULATED_NCCL_VERSION=23002", {}),
        ("NCCL allows from 2.30 on", "", {"PC_EMULATED_NCCL_VERSION": "22907"}),
        ("set NCCL_MULTI_RANK_GPU_ENABLE=1", "", {"NCCL_MULTI_RANK_GPU_ENABLE": "0"}),
        ("NCCL_MAX_CTAS=100", "", {"NCCL_MAX_CTAS": "100"}),
    ],
)
def test_no_communicator(nccl_ranks: OnRanks, expected: str, lacking: str, env: dict[str, str]) -> None:
    """Every rank raises, with the reason of the rank that failed."""
    assert all("fine" in text for text in nccl_ranks(2, _no_communicator, expected, lacking, env=env, check=True))


def _nccls_own_error() -> None:
    import gpu.emulation

    cuda = gpu.emulation.install()
    import pycollective as pc
    from pycollective.comm.cuda.nccl.library import library

    made = library()
    comm = cuda.NcclComm(made.handle, made.handle.unique_id(), 1, 0, 0, 0)
    assert comm.settle(10)
    memory = cuda.allocate_plain(0, 64)
    try:
        comm.run("allreduce", memory.address, memory.address, 4, [], 99, 4, 0, b"", 0, 0, 5.0)
    except pc.CommunicatorError as error:
        print(error, flush=True)
    comm.abort()
    try:
        comm.run("allreduce", memory.address, memory.address, 4, [], 0, 1, 0, b"", 0, 0, 5.0)
    except pc.CommunicatorError as error:
        print(error, flush=True)


def test_nccls_own_error(nccl_ranks: OnRanks) -> None:
    first, second = nccl_ranks(1, _nccls_own_error, check=True)[0].splitlines()
    assert first == "NCCL 2.30.1: ncclAllReduce: invalid argument; last error: no such data type: 99"
    assert "aborted" in second


def _mismatch(other: str) -> None:
    import gpu.emulation

    gpu.emulation.install()
    import numpy as np

    import pycollective as pc
    from gpu.device import get, put

    comm = pc.init()
    comm.allreduce(put(np.ones(4)), topology="nccl")
    try:
        if comm.rank == 0:
            get(comm.allreduce(put(np.ones(4)), topology="nccl", timeout=20))
        elif other == "count":
            get(comm.allreduce(put(np.ones(5)), topology="nccl", timeout=20))
        else:
            get(comm.allreduce(put(np.ones(4)), timeout=20))
        for _ in range(200):
            comm.check()
            import time

            time.sleep(0.05)
    except pc.MismatchError as error:
        assert "topology nccl" in str(error) and ("of 5" in str(error) or "topology direct" in str(error)), error
        print("fine", flush=True)


@pytest.mark.parametrize("other", ["count", "topology"])
def test_mismatch(nccl_ranks: OnRanks, other: str) -> None:
    ranks = nccl_ranks(2, _mismatch, other)
    assert all("fine" in text for text in ranks), ranks.report()


def _late() -> None:
    import gpu.emulation

    gpu.emulation.install()
    import time

    import numpy as np

    import pycollective as pc
    from gpu.device import put

    comm = pc.init()
    comm.allreduce(put(np.ones(4)), topology="nccl")
    if comm.rank == 1:
        time.sleep(4)  # alive but inactive
        return
    begin = time.monotonic()
    handle = comm.iallreduce(put(np.ones(4)), topology="nccl", timeout=0.5)
    try:
        handle.wait()
    except pc.TimeoutError as error:
        assert time.monotonic() - begin < 3
        print("fine", error, flush=True)


def test_a_rank_that_does_not_come(nccl_ranks: OnRanks) -> None:
    assert "fine" in nccl_ranks(2, _late)[0]


def _killed(when: str) -> None:
    import gpu.emulation

    gpu.emulation.install()
    import os
    import signal
    import time
    from pathlib import Path

    import numpy as np

    import pycollective as pc
    from gpu.device import put

    comm = pc.init()
    if when == "between":
        comm.allreduce(put(np.ones(4)), topology="nccl")
    else:  # the rank that dies never connects to the others
        comm.allreduce(put(np.ones(4)))
    comm.barrier()
    left = [Path(__file__).with_name(f"left{rank}") for rank in range(3)]
    left[comm.rank].touch()
    if comm.rank == 1:
        while not all(file.exists() for file in left):  # a rank that is still in the barrier may report the loss there
            time.sleep(0.001)
        if when == "meeting":
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        comm.iallreduce(put(np.ones(4)), topology="nccl").wait()
    except pc.PeerLostError as error:
        assert error.rank == 1, error
        print(f"lost after {time.monotonic() - begin:.2f}", flush=True)
    try:
        comm.allreduce(put(np.ones(4)), topology="nccl")
    except pc.PeerLostError:
        print("poisoned", flush=True)
    rest = comm.shrink()
    from gpu.device import get

    found = get(rest.allreduce(put(np.ones(4)), topology="nccl")).tolist()
    rest.check()
    assert found == [2.0] * 4, found
    print("fine", flush=True)


@pytest.mark.parametrize("when", ["between", "meeting"])
@pytest.mark.parametrize("deaf", ["0", "1"])
def test_a_peer_is_killed(nccl_ranks: OnRanks, when: str, deaf: str) -> None:
    """Whether NCCL notices it or not: the survivors get an error within a second, and continue without it."""
    begin = time.monotonic()
    ranks = nccl_ranks(3, _killed, when, env={"PC_EMULATED_NCCL_DEAF": deaf}, grace=20)
    assert time.monotonic() - begin < 30
    for rank in (0, 2):
        assert "fine" in ranks[rank] and "poisoned" in ranks[rank], ranks.report()
        assert float(ranks[rank].split("lost after ")[1].split()[0]) < 2.0, ranks.report()
