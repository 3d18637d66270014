"""Errors of GPU calls are raised on every rank, name the rank and the cause, and never leave a process hanging."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from calls import on_each_rank
from processes import Job, all_say

from gpu import emulation
from gpu.device import LONG, data, get, in_window, put, same
from gpu.ranks import on_processes, until_it_raises
from meeting import on_threads
from pycollective import Communicator, CommunicatorError, MismatchError, PeerLostError, TimeoutError, TopologyError

pytestmark = pytest.mark.usefixtures("cuda")

SHORT = 300


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


PARTS = {
    "count": ("allreduce of 300 float32", "allreduce of 301 float32"),
    "rows": ("rows of shape (2,)", "rows of shape (3,)"),
    "tiles": ("in tiles of 65536 bytes",),
}
"""What the error names, besides the ranks."""


@pytest.mark.parametrize("what", DIFFERENT)
@on_processes(2)
def test_calls_that_do_not_match(comm: Communicator, what: str) -> None:
    if what == "tiles" and comm.rank == 1:  # as if it had been started with PYCOLLECTIVE_CUDA_TILE=65536
        from pycollective.comm.cuda import planner

        planner.setting = lambda name: 65536.0
    comm.allreduce(put(data(0, 10)))
    comm.barrier()
    with pytest.raises(MismatchError) as raised:
        DIFFERENT[what](comm)
        raise until_it_raises(comm)
    error = raised.value
    assert [part for part in ("rank 0", "rank 1", *PARTS.get(what, ())) if part not in str(error)] == [], error
    for x in (put(data(0, 10)), data(0, 10)):
        with pytest.raises(MismatchError):
            comm.allreduce(x)


@on_processes(2)
def test_a_window_that_was_dropped(comm: Communicator) -> None:
    """A rank has dropped the array of a window that the other's call uses."""
    first, second = (in_window(comm, data(0, LONG)) for _ in range(2))
    comm.allreduce(first, out=first)
    get(first)  # a dropped window stays while a call is in flight
    used = second if comm.rank else first
    if comm.rank:
        del first
    comm.barrier()
    comm.allreduce(used, out=used)
    text = str(until_it_raises(comm))
    assert "dropped" in text and "comm.empty" in text


@pytest.mark.parametrize("why", ["topology", "mismatch"])
@on_processes(2)
def test_a_broadcast_that_is_refused_leaves_its_output_alone(comm: Communicator, why: str) -> None:
    """Its input is copied into a window, in call order."""
    x = data(comm.rank, LONG)
    w, source = in_window(comm, x), put(data(9, LONG))
    if why == "topology":
        with pytest.raises(TopologyError):
            comm.broadcast(source, out=w, topology="no such topology")
    elif comm.rank == 1:  # its call is recorded before rank 0 makes another
        comm.allreduce(w, out=w)
        comm.barrier()
    else:
        comm.barrier()
        with pytest.raises(MismatchError):
            comm.broadcast(source, out=w)
    if comm.rank == 0 or why == "topology":
        same(w, x)


# -- ranks that do not arrive, or are gone -----------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "topology"), [(SHORT, None), (LONG, "direct"), (LONG, "ring")])
@on_processes(3)
def test_a_rank_that_does_not_come(comm: Communicator, count: int, topology: str | None) -> None:
    x = put(data(0, count))
    comm.allreduce(x)
    comm.barrier()
    began = time.monotonic()
    if comm.rank != 1:
        comm.allreduce(x, topology=topology, timeout=0.3)
    error = until_it_raises(comm)
    assert comm.rank == 1 or 0.25 < time.monotonic() - began < 3
    assert isinstance(error, TimeoutError) and "rank 1" in str(error), repr(error)


def call_until_a_rank_is_lost(
    comm: Communicator, link: Connection, count: int, topology: str | None, window: bool
) -> float:
    """When the loss was noticed. The survivors continue without it."""
    emulation.install()
    x = comm.empty(count, np.float32, device="cuda") if window else put(np.zeros(count, np.float32))
    x.copy_from_host(np.zeros(4 * count, np.uint8))
    with pytest.raises(PeerLostError) as lost:
        for turn in range(10**9):
            comm.iallreduce(x, out=x, topology=topology).wait()
            if turn == 2:
                link.send("busy")
    noticed = time.monotonic()
    assert lost.value.rank == comm.size - 1
    same(comm.shrink().allreduce(put(data(comm.rank, count))), sum(data(rank, count) for rank in range(comm.size - 1)))
    return noticed


@pytest.mark.parametrize(
    ("count", "topology", "window"), [(SHORT, None, False), (LONG, "direct", True), (LONG, "ring", False)]
)
@pytest.mark.parametrize("n", [2, 3])
def test_a_rank_that_is_killed(n: int, count: int, topology: str | None, window: bool) -> None:
    with Job(n, call_until_a_rank_is_lost, count, topology, window) as job:
        all_say(job, "busy")
        at = job.kill(n - 1)
        outcomes = job.outcomes(20)
        for rank in range(n - 1):
            assert (outcomes[rank].trace, outcomes[rank].exitcode) == ("", 0), rank
            assert outcomes[rank].value - at < 2.0


# -- invalid arguments, before anything is sent ------------------------------------------------------------------------


@on_processes(2)
def test_what_cannot_work_is_refused(comm: Communicator) -> None:
    host = data(comm.rank, 10)
    x = put(host)
    refused: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (TypeError, "out is in CPU memory", lambda: comm.allreduce(x, out=host)),
        (TypeError, "x is in CPU memory", lambda: comm.allreduce(host, out=x)),
        (TypeError, "x is float32 but out is float64", lambda: comm.allreduce(x, out=put(np.zeros(10)))),
        (ValueError, "out has 9 elements; this call needs 10", lambda: comm.allreduce(x, out=put(host[:9]))),
        (ValueError, "root 7", lambda: comm.broadcast(x, root=7)),
        (ValueError, "max_channels", lambda: comm.allreduce(x, max_channels=-1)),
        (ValueError, "timeout", lambda: comm.allreduce(x, timeout=-1)),
        (ValueError, "no operator is called 'mean'", lambda: comm.allreduce(x, op="mean")),
        (TypeError, "operator band does not take float32", lambda: comm.allreduce(x, op="band")),
        (ValueError, "topology", lambda: comm.allreduce(x, topology="rign")),
        (TypeError, "stream must be an integer", lambda: comm.allreduce(x, stream="main")),
        (ValueError, "cannot work in place", lambda: comm.alltoall(x, out=x)),
        (ValueError, "stream is for GPU arrays", lambda: comm.allreduce(host, stream=0)),
        (ValueError, "device must be", lambda: comm.empty(3, device="cpu")),
    ]
    for kind, text, call in refused:
        with pytest.raises(kind, match=text):
            call()
    same(comm.allreduce(x), comm.allreduce(host), "the communicator still works")


@pytest.mark.emulated
@on_processes(2, env={"PC_EMULATED_DEVICES": "3"})
def test_another_device(comm: Communicator) -> None:
    host = data(comm.rank, LONG)
    x, other = put(host, comm.rank), put(host, 2)  # the former on a different device on each rank
    same(comm.allreduce(x), comm.allreduce(host))
    with pytest.raises(ValueError, match="works on one GPU"):
        comm.allreduce(other)
    with pytest.raises(ValueError, match="x is on device"):
        comm.allreduce(x, out=other)
    same(comm.allreduce(x), comm.allreduce(host))


@on_processes(2)
def test_a_freed_communicator(comm: Communicator) -> None:
    x = put(data(comm.rank, LONG))
    out = comm.allreduce(x)
    expected = comm.allreduce(data(comm.rank, LONG))
    comm.free()
    same(out, expected, "calls in flight have completed")
    with pytest.raises(CommunicatorError, match="freed"):
        comm.allreduce(x)


@on_each_rank(1)
def test_freed_while_the_watcher_looks(comm: Communicator) -> None:
    """The watcher has found the team busy, and the team must still exist when it checks."""
    comm.allreduce(put(data(0, SHORT)))
    assert comm.gpu is not None
    team: Any = comm.gpu._team
    works, found = team._works, threading.Event()

    def slowly() -> bool:
        answer: bool = works()
        found.set()
        time.sleep(0.2)
        return answer

    def free() -> None:
        assert found.wait(10)
        team._works = works
        comm.free()

    team._works = slowly
    assert on_threads([team.look, free]) == [None, None]
