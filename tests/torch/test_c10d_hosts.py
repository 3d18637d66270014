"""A process group that spans hosts: half of the ranks have another host name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launch import on_two_host_names

pytest.importorskip("torch")

CASE = """
import os, torch, torch.distributed as dist, pycollective.torch
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("pycollective")
n, me = dist.get_world_size(), dist.get_rank()
assert me == int(os.environ["OMPI_COMM_WORLD_RANK"])
group = dist.group.WORLD
assert group.comm.local_size == 2 and group.comm.cross_size == 2
total = sum(range(n))
for dtype in (torch.float32, torch.bfloat16, torch.int64):
    x = torch.full((5, 3), me).to(dtype)
    dist.all_reduce(x)
    assert (x == total).all()
    work = dist.all_reduce(x.t(), async_op=True)
    work.wait()
    assert (x == n * total).all()
x = torch.full((4,), float(me))
outs = [torch.empty(4) for _ in range(n)]
dist.all_gather(outs, x)
assert [out[0].item() for out in outs] == list(range(n))
dist.broadcast(x, 3)
assert x[0] == 3
dist.reduce(x, 1, dist.ReduceOp.AVG)
part = torch.empty(2)
dist.reduce_scatter_tensor(part, torch.arange(2.0 * n))
assert part.tolist() == [n * 2.0 * me, n * (2.0 * me + 1)]
dist.scatter(part, [torch.full((2,), float(r)) for r in range(n)] if me == 2 else None, 2)
assert part.tolist() == [me, me]
got = [torch.empty(2) for _ in range(n)] if me == 0 else None
dist.gather(part, got)
rows = torch.cat([torch.full((r + 1,), float(me)) for r in range(n)])
back = torch.empty((me + 1) * n)
dist.all_to_all_single(back, rows, [me + 1] * n, [r + 1 for r in range(n)])
assert back.tolist() == [float(r) for r in range(n) for _ in range(me + 1)]
found = [None] * n
dist.all_gather_object(found, {"rank": me})
assert found[3] == {"rank": 3}
# messages: tags out of order, from any source
works = [dist.isend(torch.full((3,), 10.0 * me + tag), (me + 2) % n, tag=tag) for tag in (1, 2)]
out = torch.empty(3)
for tag in (2, 1):
    dist.recv(out, (me + 2) % n, tag=tag)
    assert out[0] == 10 * ((me + 2) % n) + tag
for work in works:
    work.wait()
if me == 0:
    assert sorted(dist.recv(out) for _ in range(n - 1)) == [1, 2, 3]
else:
    dist.send(out, 0)
try:
    dist.send(out, me)
    raise AssertionError
except ValueError:
    pass
# groups on one host, and across
here, there = dist.new_group([0, 1]), dist.new_group([2, 3])
mixed = dist.new_group([1, 2])
for ranks, one in (([0, 1], here), ([2, 3], there), ([1, 2], mixed)):
    if me in ranks:
        y = torch.tensor([float(me)])
        dist.all_reduce(y, group=one)
        assert y == sum(ranks)
model = DistributedDataParallel(torch.nn.Linear(3, 2))
model(torch.ones(2, 3) * me).sum().backward()
assert torch.allclose(model.module.weight.grad, torch.full((2, 3), 2 * total / n))
dist.barrier()
dist.destroy_process_group()
print("fine", flush=True)
"""


@pytest.mark.mpi
@pytest.mark.torch
def test_two_hosts(tmp_path: Path) -> None:
    script = tmp_path / "case.py"
    script.write_text(CASE)
    # The other name need not resolve: only rank 0's is used to reach the store.
    done = on_two_host_names([sys.executable, script], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("fine") == 4
