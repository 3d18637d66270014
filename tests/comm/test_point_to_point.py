"""send and recv: eager and large, in any order, both ways at once, among many ranks."""

from __future__ import annotations

import random
import re
import time
from multiprocessing.connection import Connection

import numpy as np
import pytest
from calls import on_each_rank
from processes import run
from reference import DTYPES, contributions

from pycollective import Communicator, TimeoutError, local_world

SIZES = (0, 1, 100, 4095, 4096, 4097, 8192, 50_000)
"""float64: around one and two tiles of 32 KiB, up to which the sender does not wait."""


@pytest.mark.parametrize("dtype", DTYPES)
@on_each_rank(2)
def test_every_type(comm: Communicator, dtype: str) -> None:
    xs = contributions(dtype, "max", 2, 70_001)
    for count in (0, 1, 70_001):
        if comm.rank == 0:
            comm.send(xs[0, :count], 1)
        else:
            out = np.empty(count, xs.dtype)
            assert comm.recv(out, 0) is out
            assert out.tobytes() == xs[0, :count].tobytes()


@pytest.mark.parametrize("count", SIZES)
@on_each_rank(2)
def test_messages_arrive_in_order(comm: Communicator, count: int) -> None:
    for turn in range(12):
        if comm.rank == 0:
            comm.send(np.full(count, float(turn)), 1)
        else:
            if turn % 5 == 0:
                time.sleep(0.002)
            assert (comm.recv(np.empty(count), 0) == turn).all()


@on_each_rank(2)
def test_small_messages_do_not_wait_for_the_receiver(comm: Communicator) -> None:
    """Both send first, then receive; two such messages at a time."""
    other = 1 - comm.rank
    for turn in range(20):
        for part in range(2):
            comm.send(np.full(4096, 10.0 * turn + part), other, timeout=5)
        for part in range(2):
            assert comm.recv(np.empty(4096), other)[0] == 10 * turn + part


def exchange_with_all(comm: Communicator, link: Connection | None) -> None:
    """Every rank posts messages to and from every other, in a different order, mixed with collectives."""
    choice = random.Random(comm.rank)
    peers = [rank for rank in range(comm.size) if rank != comm.rank]
    for turn in range(6):
        counts = {(a, b): SIZES[(a + 3 * b + turn) % len(SIZES)] for a in range(comm.size) for b in range(comm.size)}
        posts = [(peer, way) for peer in peers for way in ("send", "recv")]
        choice.shuffle(posts)
        handles, boxes = [], {}
        for peer, way in posts:
            if way == "send":
                x = np.full(counts[comm.rank, peer], 100.0 * comm.rank + peer + turn)
                handles.append(comm.isend(x, peer))
            else:
                boxes[peer] = np.full(counts[peer, comm.rank], -1.0)
                handles.append(comm.irecv(boxes[peer], peer))
            if choice.random() < 0.2:
                time.sleep(0.001)
        assert comm.allreduce(np.ones(1000))[0] == comm.size
        choice.shuffle(handles)
        for handle in handles:
            handle.wait(20)
        for peer, box in boxes.items():
            assert (box == 100.0 * peer + comm.rank + turn).all()


@pytest.mark.parametrize("n", [2, 5])
def test_all_ranks_with_all_ranks(n: int) -> None:
    local_world(n).run(lambda comm: exchange_with_all(comm, None))
    run(n, exchange_with_all)


@on_each_rank(2)
def test_windows_and_views_and_mixed_blocking(comm: Communicator) -> None:
    window = comm.empty(60_000)
    if comm.rank == 0:
        window[:] = np.arange(60_000)
        first = comm.isend(window[7:50_007], 1)
        comm.send(window[:3], 1)  # queued behind
        first.wait(20)
    else:
        time.sleep(0.01)
        assert comm.recv(window[100:50_100], 0)[49_999] == 50_006
        assert comm.recv(np.empty(3), 0).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("call", "lacks"), [("recv", "sent"), ("send", "received")])
def test_both_ranks_receive_or_both_send_what_is_not_buffered(call: str, lacks: str) -> None:
    def body(comm: Communicator) -> str:
        with pytest.raises(TimeoutError) as caught:  # of the rank that notices it first
            getattr(comm, call)(np.empty(1_000_000), 1 - comm.rank, timeout=0.5)
        return str(caught.value)

    [text] = set(local_world(2).run(body))
    found = re.search(rf"{call}\(count=1000000, dtype=float64\), message 1 (?:to|from) rank (.) of ", text)
    assert found is not None, text
    other, mine = int(found[1]), 1 - int(found[1])
    late = f"not {lacks} within 0.5 s by rank {other}; rank {other} waits for rank {mine} in another call"
    assert text.endswith(late), text


@on_each_rank(2)
def test_strided_and_other_inputs(comm: Communicator) -> None:
    if comm.rank == 0:
        comm.send(np.arange(10.0)[::2], 1)
        comm.send([1, 2, 3], 1)
        comm.send(4.5, 1)
    else:
        assert comm.recv(np.empty(5), 0).tolist() == [0, 2, 4, 6, 8]
        assert comm.recv(np.empty(3, np.int64), 0).tolist() == [1, 2, 3]
        assert comm.recv(np.empty(()), 0) == 4.5
