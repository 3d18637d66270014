"""Prefix reductions of GPU arrays, compared bitwise with the CPU's results."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from processes import run

import pycollective as pc
from gpu import emulation
from gpu.device import LONG, data, get, put
from pycollective import Communicator, _core
from pycollective.schedule import describe

pytestmark = pytest.mark.usefixtures("cuda")

SCANS = ("scan", "exscan")
TOPOLOGIES = [row.name for row in describe() if "scan" in row.collectives]


def compare(comm: Communicator, x: np.ndarray[Any, Any], **options: Any) -> None:
    for name in SCANS:
        expected, found = getattr(comm, name)(x, **options), getattr(comm, name)(put(x), **options)
        assert get(found).tobytes() == expected.tobytes(), (name, x.dtype, x.size, options)


def between_processes(comm: Communicator, link: Connection) -> None:
    emulation.install()
    for count in (0, 1, 300, LONG):
        compare(comm, data(comm.rank, count), postscale=0.5)
    for topology in TOPOLOGIES:
        compare(comm, data(comm.rank, LONG), topology=topology)
    x = data(comm.rank, LONG)
    window, out = comm.empty(LONG, np.float32, device="cuda"), comm.empty(LONG, np.float32, device="cuda")
    for name in SCANS:
        expected = getattr(comm, name)(x, out=np.zeros_like(x))
        out.copy_from_host(np.zeros(x.nbytes, np.uint8))
        window.copy_from_host(x.view(np.uint8))
        assert getattr(comm, name)(window, out=out) is out
        assert get(out).tobytes() == expected.tobytes()
        assert getattr(comm, name)(window, out=window) is window
        if name == "scan" or comm.rank > 0:
            assert get(window).tobytes() == expected.tobytes()
        else:
            assert get(window).tobytes() == x.tobytes(), "rank 0's array is unchanged"
    with pytest.raises(ValueError, match="does not take operator avg"):
        comm.scan(put(x), op="avg")


@pytest.mark.parametrize("n", [1, 2, 3])
def test_scans_between_processes(n: int) -> None:
    run(n, between_processes)


def every_type(comm: Communicator, link: Connection) -> None:
    emulation.install()
    for dtype in _core.dtypes():
        compare(comm, data(comm.rank, LONG, dtype), op="max" if dtype == "bool" else "sum")


def test_every_type() -> None:
    run(3, every_type)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_scans_of_ranks_on_one_gpu(size: int, topology: str) -> None:
    def work(comm: Communicator) -> None:
        compare(comm, data(comm.rank, LONG), topology=topology)
        x = put(data(comm.rank, LONG))
        expected = comm.scan(data(comm.rank, LONG), topology=topology)
        assert comm.scan(x, out=x, topology=topology) is x
        assert get(x).tobytes() == expected.tobytes()

    pc.local_world(size).run(work)
