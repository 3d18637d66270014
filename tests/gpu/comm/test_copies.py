"""A broadcast that copies its input into a window does so in call order, and not if the call is refused."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from processes import run

import pycollective
from gpu import emulation
from gpu.device import LONG, data, get, put
from pycollective import Communicator

pytestmark = pytest.mark.usefixtures("cuda")


def window(comm: Communicator, x: np.ndarray[Any, Any]) -> Any:
    made = comm.empty(x.shape, x.dtype, device="cuda")
    made.copy_from_host(x.view(np.uint8))
    return made


def in_two_streams(comm: Communicator, link: Connection) -> None:
    """Rank 0 enters both calls before rank 1 arrives: its first one still reads what its second one writes."""
    cuda: Any = emulation.install()
    first, second = cuda.Stream(0), cuda.Stream(0)
    x, sent = data(comm.rank, LONG), data(9, LONG)
    expected = comm.allreduce(x)
    w, r, source = window(comm, x), put(np.zeros_like(x)), put(sent)
    if comm.rank == 1:
        comm.barrier()
    handle = comm.iallreduce(w, out=r, stream=first.address)
    comm.broadcast(source, out=w, stream=second.address)
    if comm.rank == 0:
        comm.barrier()
    handle.wait()
    assert get(r, first.address).tobytes() == expected.tobytes()
    assert get(w, second.address).tobytes() == sent.tobytes()


def test_a_broadcast_leaves_its_output_to_the_call_before_it() -> None:
    run(2, in_two_streams)


def refused(comm: Communicator, link: Connection, why: str) -> None:
    emulation.install()
    x = data(comm.rank, LONG)
    w, source = window(comm, x), put(data(9, LONG))
    if why == "topology":
        with pytest.raises(pycollective.TopologyError):
            comm.broadcast(source, out=w, topology="no such topology")
    elif comm.rank == 1:  # its call is recorded before rank 0 makes another
        comm.allreduce(w, out=w)
        comm.barrier()
    else:
        comm.barrier()
        with pytest.raises(pycollective.MismatchError):
            comm.broadcast(source, out=w)
    if comm.rank == 0 or why == "topology":
        assert get(w).tobytes() == x.tobytes()


@pytest.mark.parametrize("why", ["topology", "mismatch"])
def test_a_broadcast_that_is_refused_leaves_its_output_alone(why: str) -> None:
    run(2, refused, why)
