"""torch's CUDA tensors, on a GPU. On the emulated runtime test_c10d.py does much the same with stand-ins."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from c10d import World

torch: Any = pytest.importorskip("torch", reason="needs a GPU and torch with CUDA: there is no torch")
import torch.distributed as dist  # noqa: E402
from c10d import on_ranks  # noqa: E402

from gpu.torch.c10d_calls import compare  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.gpu]


@pytest.fixture(autouse=True)
def _torch_with_cuda(_device_where_one_is_needed: None) -> None:
    if not torch.version.cuda:
        pytest.skip("needs torch with CUDA")


def _on_own_device(world: World) -> Any:
    """A rank's device, which others may share."""
    device = torch.device("cuda", world.rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


@on_ranks(3)
def test_c10d_collectives(world: World) -> None:
    device = _on_own_device(world)
    compare(world, lambda x: x.to(device), lambda x: x)


@on_ranks(2)
def test_c10d_streams(world: World) -> None:
    """The host continues; streams that wait and a future's callbacks see the result."""
    device, store = _on_own_device(world), world.ours.get_group_store()
    x = torch.ones(1 << 20, device=device)
    x * 2, x / 2, x.sum()  # CUDA loads a kernel at its first launch, and may then wait for the kernels in flight
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if world.rank:
        store.wait(["others"])
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future().then(lambda f: f.value()[0] * 2)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work.wait()
        half = x / 2
    if world.rank == 0:
        assert not work.is_completed()
        with pytest.raises(RuntimeError, match="has not completed yet"):
            work.wait(timedelta(seconds=0.01))
        store.set("others", "go")
    assert future.wait().sum().item() == 8 * x.numel()
    side.synchronize()
    assert half.sum().item() == 2 * x.numel() and work.is_success()
    temporary = torch.ones(1 << 20, device=device) * (world.rank + 1)
    work = dist.all_reduce(temporary, async_op=True)
    total = work.result()[0].sum()
    del temporary, work
    assert total.item() == 3 * x.numel()
    dist.barrier()
    got = torch.empty(5, device=device)
    works = [dist.isend(x[:5], 1 - world.rank), dist.irecv(got, 1 - world.rank)]
    for work in works:
        work.wait()
    assert got.sum().item() == 20
    with pytest.raises(ValueError, match="different devices"):
        dist.all_gather([got, got.cpu()], got)


@on_ranks(2, gloo=True)
def test_c10d_training(world: World) -> None:
    """DistributedDataParallel and fully_shard on the GPU give the results of DistributedDataParallel with Gloo."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    device = _on_own_device(world)
    torch.set_default_dtype(torch.float64)

    def trained(model: Any, where: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(4):
            x = torch.randn(6, 8, generator=torch.Generator().manual_seed(10 * world.rank + step)).to(where)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        whole = [getattr(p, "full_tensor", lambda p=p: p)() for p in model.parameters()]
        return torch.cat([p.detach().reshape(-1).cpu() for p in whole])

    def network() -> Any:
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(8, 33), torch.nn.Tanh(), torch.nn.Linear(33, 4))

    right = trained(DistributedDataParallel(network(), process_group=world.gloo), "cpu")
    parallel = DistributedDataParallel(network().to(device), device_ids=[device.index], bucket_cap_mb=0.001)
    torch.testing.assert_close(trained(parallel, device), right)
    mesh = dist.device_mesh.init_device_mesh("cuda", (2,))
    torch.testing.assert_close(trained(fully_shard(network().to(device), mesh=mesh), device), right)
