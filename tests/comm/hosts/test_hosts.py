"""A communicator that spans hosts: half of the ranks simulate another machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launch import on_two_host_names

CASE = """
import numpy as np, ml_dtypes, pycollective as pc
comm = pc.init()
n, me = comm.size, comm.rank
assert (comm.local_size, comm.cross_size, comm.cross_rank) == (2, 2, me // 2), comm
x = np.arange(6, dtype="f4") + me
total = sum(np.arange(6) + r for r in range(n))
assert np.array_equal(comm.allreduce(x), total)
assert np.array_equal(comm.allreduce(x, op="avg"), total / n)
assert np.array_equal(comm.iallreduce(x).result(), total)
assert np.array_equal(comm.allreduce(x.astype(ml_dtypes.bfloat16)), total)
assert np.array_equal(comm.allreduce(x, op=pc.op(lambda a, b: a * b)), np.prod([np.arange(6) + r for r in range(n)], 0))
reduced = comm.reduce(x, root=1)
assert np.array_equal(reduced, total) if me == 1 else reduced is None
sums = np.cumsum([np.arange(6) + r for r in range(n)], 0)
before = sums[me - 1] if me else np.zeros(6)
for y in (x.copy(), np.tile(x, 9000)):
    times = y.size // 6
    assert np.array_equal(comm.scan(y), np.tile(sums[me], times))
    assert np.array_equal(comm.exscan(y), np.tile(before, times))
    left = np.tile(before, times) if me else y.copy()
    assert np.array_equal(comm.iexscan(y, out=y).result(), left)
assert np.array_equal(comm.broadcast(x, root=2), np.arange(6) + 2)
assert comm.allgather(x).shape == (24,)
assert comm.allgatherv(np.full(me + 1, me)).tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
assert np.array_equal(comm.reduce_scatter(x), np.array_split(total, n)[me])
assert comm.alltoall(np.arange(8) + 10 * me).tolist() == [v + 10 * r for r in range(n) for v in (2 * me, 2 * me + 1)]
rows = comm.alltoallv(np.full(n * (me + 1), me), [me + 1] * n)
assert rows.tolist() == [r for r in range(n) for _ in range(r + 1)]
gathered = comm.gather(x, root=3)
assert gathered.shape == (24,) if me == 3 else gathered is None
assert np.array_equal(comm.scatter(np.arange(8) if me == 0 else np.empty(8, int)), [2 * me, 2 * me + 1])
if me == 0: comm.send(x, 3)
if me == 3: assert np.array_equal(comm.recv(np.empty(6, "f4"), 0), np.arange(6))
comm.barrier()
text = str(comm.explain("allreduce", 1 << 20))
assert "order of reduction: rank" in text and "2 hosts" in text and "over TCP" in text, text
assert comm.explain("allreduce", 1 << 20).links.count("1048576 bytes") == 2, text
node = comm.split(comm.cross_rank)
assert (node.size, node.rank) == (2, comm.local_rank)
assert "shared memory" in node.explain("allreduce", 1 << 20).window
assert np.array_equal(node.allreduce(np.ones(10)), np.full(10, 2.0))
across = comm.split(comm.local_rank)
assert across.allreduce(np.ones(1))[0] == 2 and "over TCP" in across.explain("allreduce", 4).plain
comm.barrier()
print("fine", flush=True)
"""


@pytest.mark.mpi
def test_two_hosts(tmp_path: Path) -> None:
    script = tmp_path / "case.py"
    script.write_text(CASE)
    done = on_two_host_names([sys.executable, script], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("fine") == 4
