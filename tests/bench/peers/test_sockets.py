"""bench/peers/sockets.py: what two ranks must exchange."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from pycollective.bench.peers import PeerUnavailable
from pycollective.bench.peers.sockets import open as open_sockets
from pycollective.bench.workload.cases import Case


class _Thread:
    """A World of threads."""

    values: list[Any]
    turn: threading.Barrier

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def barrier(self) -> None:
        self.turn.wait(10)

    def share(self, value: Any) -> list[Any]:
        self.values[self.rank] = value
        self.barrier()
        found = list(self.values)
        self.barrier()
        return found


def _world(size: int) -> list[_Thread]:
    shared = type("_Shared", (_Thread,), {"values": [None] * size, "turn": threading.Barrier(size)})
    return [shared(rank, size) for rank in range(size)]


@pytest.mark.parametrize("count", [1, 2, 70_001])
def test_everything_crosses(count: int) -> None:
    def rank(world: _Thread) -> Any:
        peer = open_sockets(world)
        assert peer.supports(Case("allreduce", "float32", "sum", count, 2))
        assert not peer.supports(Case("broadcast", "float32", "sum", count, 2))
        send, recv = np.arange(count, dtype=np.float32) + world.rank, np.empty(count, np.float32)
        call = peer.allreduce(send, recv, "sum")
        for _ in range(3):
            call()
        peer.close()
        return recv

    with ThreadPoolExecutor(2) as pool:
        for r, received in enumerate(pool.map(rank, _world(2))):
            np.testing.assert_array_equal(received, np.arange(count, dtype=np.float32) + 1 - r)


def test_more_ranks_are_refused() -> None:
    with pytest.raises(PeerUnavailable, match="two ranks, not 3"):
        open_sockets(_world(3)[0])
