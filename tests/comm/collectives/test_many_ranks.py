"""Many more ranks than cores: every collective, blocking and not, on 128 processes and on 100 threads."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from calls import on_each_rank
from processes import Job

from pycollective import Communicator, local_world

ROW = 3
"""Elements of a row."""


def value(rank: Any, chunk: Any = 0) -> Any:
    """An element of a rank's contribution, different for every rank and chunk, exact in sums over all ranks."""
    return rank * 1009 + chunk


def check(what: str, got: Any, expected: Any) -> None:
    np.testing.assert_array_equal(got, expected, err_msg=what)


def every_collective(comm: Communicator, link: Connection | None = None) -> None:
    n, r = comm.size, comm.rank
    ranks = np.arange(n, dtype=np.int64)
    rows = np.repeat(ranks[:, None], ROW, axis=1)  # row c is of chunk c
    mine, last = value(r, rows), n - 1
    whole = value(ranks.sum(), n * rows)  # the sum over all ranks
    for topology in (None, "ring", "tree", "halving_doubling"):
        check(f"allreduce {topology}", comm.allreduce(mine, topology=topology), whole)
    reduced = comm.reduce(mine, root=last)
    if r == last:
        check("reduce", reduced, whole)
    check("reduce_scatter", comm.reduce_scatter(mine), whole[r : r + 1])
    check("scan", comm.scan(mine), value(ranks[: r + 1].sum(), (r + 1) * rows))
    check("exscan", comm.exscan(mine), value(ranks[:r].sum(), r * rows))
    check("broadcast", comm.broadcast(mine, root=last), value(last, rows))
    gathered = value(ranks[:, None], np.zeros((1, ROW), np.int64))
    check("allgather", comm.allgather(gathered[r : r + 1]), gathered)
    collected = comm.gather(gathered[r : r + 1])
    if r == 0:
        check("gather", collected, gathered)
    check("scatter", comm.scatter(mine, root=last), value(last, rows[r : r + 1]))
    check("alltoall", comm.alltoall(mine), value(ranks[:, None], np.full((1, ROW), r)))
    counts = [1 + rank % 3 for rank in range(n)]
    check("allgatherv", comm.allgatherv(np.full(counts[r], r), counts), np.repeat(ranks, counts))
    sent = [(r + rank) % 2 for rank in range(n)]
    check("alltoallv", comm.alltoallv(np.full(sum(sent), r), sent), ranks[[(s + r) % 2 == 1 for s in ranks]])
    check("mix", comm.mix(np.full(ROW, float(r)), {r: 0.5, (r + 1) % n: 0.5}), np.full(ROW, (r + (r + 1) % n) / 2))
    handles = [comm.iallreduce(mine), comm.iallgather(gathered[r : r + 1])]
    check("iallreduce", handles[0].result(), whole)
    check("iallgather", handles[1].result(), gathered)
    received = np.empty(ROW, np.int64)
    sending = comm.isend(np.full(ROW, r), (r + 1) % n)
    comm.recv(received, (r - 1) % n)
    sending.wait()
    check("recv", received, np.full(ROW, (r - 1) % n))
    window = comm.empty((n, ROW), np.int64)
    window[:] = mine
    comm.allreduce(window, out=window)
    check("allreduce in a window", window, whole)
    half = comm.split(r % 2)
    check("split", half.allreduce(np.array([r])), [ranks[r % 2 :: 2].sum()])
    comm.barrier()


def test_every_collective_on_128_processes() -> None:
    with Job(128, every_collective) as job:
        job.results(100)


def test_every_collective_on_100_threads() -> None:
    local_world(100).run(every_collective)


@on_each_rank(256)
def test_allreduces_on_256_threads(comm: Communicator) -> None:
    """Those whose schedules are compiled in less than seconds: a ring of 256 ranks has 130,000 steps."""
    n, r = comm.size, comm.rank
    for topology in (None, "tree", "halving_doubling"):
        check(f"allreduce {topology}", comm.allreduce(np.full(n, r), topology=topology), np.full(n, n * (n - 1) // 2))
    comm.barrier()
