"""bench/peers/sockets.py: what two ranks must exchange."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from calls import on_each_rank

from pycollective.bench.peers import PeerUnavailable
from pycollective.bench.peers.sockets import open as open_sockets
from pycollective.bench.workload.cases import Case


@pytest.mark.parametrize("count", [1, 2, 70_001])
@on_each_rank(2)
def test_everything_crosses(comm: Any, count: int) -> None:
    peer = open_sockets(SimpleNamespace(rank=comm.rank, size=2, barrier=comm.barrier, share=comm.allgather_object))
    assert peer.supports(Case("allreduce", "float32", "sum", count, 2))
    assert not peer.supports(Case("broadcast", "float32", "sum", count, 2))
    send, recv = np.arange(count, dtype=np.float32) + comm.rank, np.empty(count, np.float32)
    call = peer.allreduce(send, recv, "sum")
    for _ in range(3):
        call()
    peer.close()
    np.testing.assert_array_equal(recv, np.arange(count, dtype=np.float32) + 1 - comm.rank)


def test_more_ranks_are_refused() -> None:
    with pytest.raises(PeerUnavailable, match="two ranks, not 3"):
        open_sockets(SimpleNamespace(rank=0, size=3))
