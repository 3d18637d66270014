"""Errors of GPU calls are raised on every rank, name the rank and the cause, and never leave a process hanging."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from processes import Job, run

import pycollective as pc
from gpu import emulation
from gpu.device import LONG, data, get, put
from pycollective import Communicator, CommunicatorError, MismatchError, PeerLostError, TimeoutError

pytestmark = pytest.mark.usefixtures("cuda")

SHORT = 300


def until_it_raises(comm: Communicator, seconds: float = 10) -> Exception:
    """The communicator's error, while calls of this rank are still in flight."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            comm.check()
        except Exception as error:
            return error
        time.sleep(0.005)
    raise AssertionError("nothing was raised")


# -- calls that do not match -------------------------------------------------------------------------------------------

DIFFERENT: dict[str, Callable[[Communicator], Any]] = {
    "count": lambda comm: comm.allreduce(put(data(0, SHORT + comm.rank))),
    "count, long": lambda comm: comm.allreduce(put(data(0, LONG + comm.rank))),
    "way": lambda comm: comm.allreduce(put(data(0, SHORT if comm.rank else LONG))),
    "dtype": lambda comm: comm.allreduce(put(data(0, SHORT, "float64" if comm.rank else "int64"))),
    "operator": lambda comm: comm.allreduce(put(data(0, LONG)), op="max" if comm.rank else "min"),
    "topology": lambda comm: comm.allreduce(put(data(0, LONG)), topology="ring" if comm.rank else "tree"),
    "collective": lambda comm: (comm.allreduce if comm.rank else comm.broadcast)(put(data(0, LONG))),
    "root": lambda comm: comm.broadcast(put(data(0, SHORT)), root=comm.rank),
    "scale": lambda comm: comm.allreduce(put(data(0, SHORT)), prescale=1.0 + comm.rank),
    "channels": lambda comm: comm.allreduce(put(data(0, LONG)), max_channels=1 + comm.rank),
    "rows": lambda comm: comm.allgather(put(data(0, 300).reshape((-1, 2 + comm.rank)))),
    "tiles": lambda comm: comm.allreduce(put(data(0, LONG))),
}


def mismatched(comm: Communicator, link: Connection, what: str) -> str:
    emulation.install()
    if what == "tiles" and comm.rank == 1:  # as if it had been started with PYCOLLECTIVE_CUDA_TILE=65536
        from pycollective.comm.cuda import planner

        planner.setting = lambda name: 65536.0
    comm.allreduce(put(data(0, 10)))
    comm.barrier()
    try:
        DIFFERENT[what](comm)
        error = until_it_raises(comm)
    except MismatchError as raised:
        error = raised
    assert isinstance(error, MismatchError), repr(error)
    with pytest.raises(MismatchError):
        comm.allreduce(put(data(0, 10)))
    with pytest.raises(MismatchError):
        comm.allreduce(data(0, 10))
    return str(error)


@pytest.mark.parametrize("what", DIFFERENT)
def test_calls_that_do_not_match(what: str) -> None:
    for text in run(2, mismatched, what):
        assert "rank 0" in text and "rank 1" in text, text
        if what == "count":
            assert "allreduce of 300 float32" in text and "allreduce of 301 float32" in text
        if what == "rows":
            assert "rows of shape (2,)" in text and "rows of shape (3,)" in text
        if what == "tiles":
            assert "in tiles of 65536 bytes" in text


def other_windows(comm: Communicator, link: Connection) -> str:
    """A rank has dropped the array of a window that the others' call uses."""
    emulation.install()
    first, second = (comm.empty(LONG, np.float32, device="cuda") for _ in range(2))
    for array in (first, second):
        array.copy_from_host(data(0, LONG).view(np.uint8))
    comm.allreduce(first, out=first)
    get(first)  # a dropped window stays while a call is in flight
    used = second if comm.rank else first
    if comm.rank:
        del first, array
    comm.barrier()
    comm.allreduce(used, out=used)
    return str(until_it_raises(comm))


def test_a_window_that_was_dropped() -> None:
    for text in run(2, other_windows):
        assert "dropped" in text and "comm.empty" in text


# -- ranks that do not arrive, or are gone -----------------------------------------------------------------------------


def late(comm: Communicator, link: Connection, count: int, topology: str | None) -> str:
    emulation.install()
    x = put(data(0, count))
    comm.allreduce(x)
    comm.barrier()
    if comm.rank == 1:
        error = until_it_raises(comm)
    else:
        began = time.monotonic()
        comm.allreduce(x, topology=topology, timeout=0.3)
        error = until_it_raises(comm)
        assert 0.25 < time.monotonic() - began < 3
    assert isinstance(error, TimeoutError), repr(error)
    return str(error)


@pytest.mark.parametrize(("count", "topology"), [(SHORT, None), (LONG, "direct"), (LONG, "ring")])
def test_a_rank_that_does_not_come(count: int, topology: str | None) -> None:
    for text in run(3, late, count, topology):
        assert "rank 1" in text


def call_forever(comm: Communicator, link: Connection, count: int, topology: str | None, window: bool) -> None:
    emulation.install()
    x = comm.empty(count, np.float32, device="cuda") if window else put(np.zeros(count, np.float32))
    x.copy_from_host(np.zeros(4 * count, np.uint8))
    for turn in range(10**9):
        comm.iallreduce(x, out=x, topology=topology).wait()
        if turn == 2:
            link.send("busy")


@pytest.mark.parametrize(
    ("count", "topology", "window"), [(SHORT, None, False), (LONG, "direct", True), (LONG, "ring", False)]
)
@pytest.mark.parametrize("n", [2, 3])
def test_a_rank_that_is_killed(n: int, count: int, topology: str | None, window: bool) -> None:
    victim = n - 1
    with Job(n, call_forever, count, topology, window) as job:
        for rank in range(n):
            assert job.hear(rank) == "busy"
        at = job.kill(victim)
        outcomes = job.outcomes(20)
        for rank in range(n - 1):
            error = outcomes[rank].error
            assert isinstance(error, PeerLostError), f"rank {rank}: {error!r}\n{outcomes[rank].trace}"
            assert error.rank == victim
            assert outcomes[rank].at - at < 2.0


def go_on(comm: Communicator, link: Connection) -> Any:
    emulation.install()
    x = put(data(comm.rank, LONG))
    comm.allreduce(x)
    link.send("ready")
    if comm.rank == 2:
        time.sleep(60)
    try:
        comm.iallreduce(x).wait()
    except PeerLostError:
        smaller = comm.shrink()
        found = get(smaller.allreduce(x))
        return bool((found == data(0, LONG) + data(1, LONG)).all())
    return None


def test_the_survivors_continue() -> None:
    with Job(3, go_on) as job:
        for rank in range(3):
            assert job.hear(rank) == "ready"
        job.kill(2)
        outcomes = job.outcomes(30)
        assert [outcomes[rank].value for rank in (0, 1)] == [True, True], outcomes


# -- invalid arguments, before anything is sent ------------------------------------------------------------------------


def refused(comm: Communicator, link: Connection) -> None:
    emulation.install()
    x = put(data(comm.rank, 10))
    host = data(comm.rank, 10)
    with pytest.raises(TypeError, match="out is in CPU memory"):
        comm.allreduce(x, out=host)
    with pytest.raises(TypeError, match="x is in CPU memory"):
        comm.allreduce(host, out=x)
    with pytest.raises(TypeError, match="x is float32 but out is float64"):
        comm.allreduce(x, out=put(np.zeros(10)))
    with pytest.raises(ValueError, match="out has 9 elements; this call needs 10"):
        comm.allreduce(x, out=put(np.zeros(9, np.float32)))
    with pytest.raises(ValueError, match="root 7"):
        comm.broadcast(x, root=7)
    with pytest.raises(ValueError, match="max_channels"):
        comm.allreduce(x, max_channels=-1)
    with pytest.raises(ValueError, match="timeout"):
        comm.allreduce(x, timeout=-1)
    with pytest.raises(ValueError, match="no operator is called 'mean'"):
        comm.allreduce(x, op="mean")
    with pytest.raises(TypeError, match="operator band does not take float32"):
        comm.allreduce(x, op="band")
    with pytest.raises(ValueError, match="topology"):
        comm.allreduce(x, topology="rign")
    with pytest.raises(TypeError, match="stream must be an integer"):
        comm.allreduce(x, stream="main")
    with pytest.raises(ValueError, match="cannot work in place"):
        comm.alltoall(x, out=x)
    with pytest.raises(ValueError, match="stream is for GPU arrays"):
        comm.allreduce(host, stream=0)
    with pytest.raises(ValueError, match="device must be"):
        comm.empty(3, device="cpu")
    assert get(comm.allreduce(x)).tobytes() == comm.allreduce(host).tobytes()  # the communicator still works


def test_what_cannot_work_is_refused() -> None:
    run(2, refused)


@pytest.mark.emulated
def test_another_device() -> None:
    run(2, on_two_devices, env={"PC_EMULATED_DEVICES": "3"})


def on_two_devices(comm: Communicator, link: Connection) -> None:
    emulation.install()
    from pycollective.comm.cuda.arrays import allocate

    def on(device: int) -> Any:
        made = allocate((LONG,), "float32", device)
        made.copy_from_host(data(comm.rank, LONG).view(np.uint8))
        return made

    x = on(comm.rank)  # a different device on each rank
    assert get(comm.allreduce(x)).tobytes() == comm.allreduce(data(comm.rank, LONG)).tobytes()
    with pytest.raises(ValueError, match="works on one GPU"):
        comm.allreduce(on(2))
    with pytest.raises(ValueError, match="x is on device"):
        comm.allreduce(x, out=on(2))
    assert get(comm.allreduce(x)).tobytes() == comm.allreduce(data(comm.rank, LONG)).tobytes()


def freed(comm: Communicator, link: Connection) -> None:
    emulation.install()
    x = put(data(comm.rank, LONG))
    out = comm.allreduce(x)
    expected = comm.allreduce(data(comm.rank, LONG))
    comm.free()
    assert get(out).tobytes() == expected.tobytes()  # calls in flight have completed
    with pytest.raises(CommunicatorError, match="freed"):
        comm.allreduce(x)


def test_a_freed_communicator() -> None:
    run(2, freed)


def test_freed_while_the_watcher_looks() -> None:
    """The watcher has found the team busy, and the team must still exist when it checks."""

    def work(comm: Communicator) -> None:
        comm.allreduce(put(data(0, SHORT)))
        assert comm.gpu is not None
        team: Any = comm.gpu._team
        works, found, failed = team._works, threading.Event(), []

        def slowly() -> bool:
            answer: bool = works()
            found.set()
            time.sleep(0.2)
            return answer

        def look() -> None:
            try:
                team.look()
            except Exception as error:
                failed.append(error)

        looking = threading.Thread(target=look)
        team._works = slowly
        looking.start()
        assert found.wait(10)
        team._works = works
        comm.free()
        looking.join()
        assert failed == []

    pc.local_world(1).run(work)
