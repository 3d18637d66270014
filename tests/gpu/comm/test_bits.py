"""`direct` gives the same bits wherever it runs, and every topology gives reproducible bits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pycollective as pc
from gpu import emulation
from gpu.device import get, put
from launch import Launched
from pycollective.comm.communicator import Communicator
from pycollective.schedule import describe

pytestmark = pytest.mark.usefixtures("cuda")

RANKS = 4
TOPOLOGIES = [row.name for row in describe()]


def long() -> int:
    """Elements: tiles over many blocks, with a partial vector at the end."""
    return 1_000_003 if emulation.on_device() else 20_003


def repeats() -> int:
    return 20 if emulation.on_device() else 3


def data(rank: int, count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1000 + rank).standard_normal(count).astype(np.float32)


def in_a_process(count: str, times: str) -> None:
    import hashlib

    import numpy as np

    import pycollective as pc
    from gpu import emulation
    from gpu.device import get, put

    emulation.install()
    comm = pc.init()
    x = put(np.random.default_rng(1000 + comm.rank).standard_normal(int(count)).astype(np.float32))
    results = [get(comm.allreduce(x, topology="direct")) for _ in range(int(times))]
    print(*{hashlib.sha256(result.tobytes()).hexdigest() for result in results})


@pytest.mark.parametrize("count", [5, 3000, None])
def test_direct_has_the_same_bits_everywhere(on_ranks: Callable[..., Launched], count: int | None) -> None:
    """On CPU ranks, on virtual ranks of one launch, and on processes that share memory."""
    count = count or long()

    def virtual(comm: Communicator) -> set[bytes]:
        x = put(data(comm.rank, count))
        return {get(comm.allreduce(x, topology="direct")).tobytes() for _ in range(repeats())}

    def on_cpu(comm: Communicator) -> bytes:
        return bytes(comm.allreduce(data(comm.rank, count), topology="direct").tobytes())

    expected = set(pc.local_world(RANKS).run(on_cpu))
    assert len(expected) == 1
    assert set().union(*pc.local_world(RANKS).run(virtual)) == expected
    digest = hashlib.sha256(expected.pop()).hexdigest()
    results = on_ranks(RANKS, in_a_process, count, repeats()).check()
    assert {text.strip() for text in results} == {digest}


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_repeats_have_the_same_bits(topology: str) -> None:
    def work(comm: Communicator) -> int:
        x = put(data(comm.rank, long()))
        return len({get(comm.allreduce(x, topology=topology)).tobytes() for _ in range(repeats())})

    assert pc.local_world(RANKS).run(work) == [1] * RANKS
