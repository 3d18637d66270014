"""mix of GPU arrays, compared bitwise with the CPU's results."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from processes import run

from gpu import emulation
from gpu.device import LONG, data, get, put
from pycollective import Communicator, MismatchError, local_world
from pycollective.dtypes import DTYPES

pytestmark = pytest.mark.usefixtures("cuda")


def ring(rank: int, size: int, step: int = 0) -> dict[int, float]:
    near = {(rank + shift) % size for shift in (-1, 0, 1)}
    return dict.fromkeys(near, 1 / len(near))


def pairs(rank: int, size: int, step: int = 0) -> dict[int, float]:
    partner = (step - rank) % size
    return {rank: 1.0} if partner == rank else {rank: 0.25, partner: 0.75}


def compare(comm: Communicator, x: np.ndarray[Any, Any]) -> None:
    for step, graph in enumerate((ring, pairs, pairs)):
        expected, found = comm.mix(x, graph, step), comm.mix(put(x), graph, step)
        assert get(found).tobytes() == expected.tobytes(), (graph, x.dtype, x.size)


def between_processes(comm: Communicator, link: Connection) -> None:
    emulation.install()
    for count in (0, 1, 300, LONG):
        compare(comm, data(comm.rank, count))
    x = data(comm.rank, LONG)
    expected = comm.mix(x, ring)
    window, out = comm.empty(LONG, np.float32, device="cuda"), comm.empty(LONG, np.float32, device="cuda")
    window.copy_from_host(x.view(np.uint8))
    assert comm.mix(window, ring, out=out) is out
    assert get(out).tobytes() == expected.tobytes()
    assert comm.mix(window, ring, out=window) is window
    assert get(window).tobytes() == expected.tobytes()
    given = ring(comm.rank, comm.size)
    assert get(comm.mix(put(x), given)).tobytes() == expected.tobytes()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_mix_between_processes(n: int) -> None:
    run(n, between_processes)


def every_type(comm: Communicator, link: Connection) -> None:
    emulation.install()
    for row in DTYPES.values():
        if row.kind == "real" and row.name != "float8_e8m0fnu":
            compare(comm, data(comm.rank, 1003, row.name))
    with pytest.raises(TypeError, match="mix takes floating-point types, not int32"):
        comm.mix(put(np.arange(4, dtype=np.int32)), ring)


def test_every_type() -> None:
    run(2, every_type)


def test_ranks_that_are_threads() -> None:
    def body(comm: Communicator) -> None:
        compare(comm, data(comm.rank, LONG))
        with pytest.raises(MismatchError, match="step"):
            comm.mix(put(data(comm.rank, 5)), ring, comm.rank)

    local_world(3).run(body)
