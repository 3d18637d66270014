"""FSDP, sharded tensors, checkpoints and functional collectives give the same on this backend as on Gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from c10d import World, on_ranks

torch: Any = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from c10d_training import batch, compare, flat, network, train  # noqa: E402
from torch import nn  # noqa: E402


@on_ranks(1, 2, 3, 4, gloo=True)
def test_sharded(world: World, tmp_path: Path) -> None:
    from torch.distributed import checkpoint

    def saved(world: World, group: Any) -> Any:
        """Another training starts from the first one's checkpoint."""
        place = tmp_path / group.name()
        model = train(world.rank, _fully_sharded(world))
        checkpoint.save({"model": model.state_dict()}, checkpoint_id=place)
        fresh = _fully_sharded(world)
        state = {"model": fresh.state_dict()}
        checkpoint.load(state, checkpoint_id=place)
        fresh.load_state_dict(state["model"])
        assert torch.equal(flat(fresh), flat(model))
        return flat(train(world.rank, fresh))

    compare(world, _fsdp2, _fsdp2_meshed, _fsdp1, saved)


def _mesh(world: World) -> Any:
    return dist.device_mesh.init_device_mesh("cpu", (world.size,))


def _fully_sharded(world: World, mesh: Any = None) -> Any:
    from torch.distributed.fsdp import fully_shard

    model, mesh = network(), mesh or _mesh(world)
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _fsdp2(world: World, group: Any) -> Any:
    model = _fully_sharded(world)
    for step in range(3):
        nn.functional.cross_entropy(model(batch(world.rank, step)[0]), batch(world.rank, step)[1]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        model.zero_grad()
    return flat(train(world.rank, model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01)))


def _fsdp2_meshed(world: World, group: Any) -> Any:
    """Sharded along one dimension of ranks, replicated along the other."""
    shape = (2, world.size // 2) if world.size % 2 == 0 else (1, world.size)
    mesh = dist.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards"))
    return flat(train(world.rank, _fully_sharded(world, mesh)))


def _fsdp1(world: World, group: Any) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    options = {"process_group": group, "device_id": torch.device("cpu"), "use_orig_params": True}
    model = FullyShardedDataParallel(network(), **options)
    train(world.rank, model)
    with FullyShardedDataParallel.summon_full_params(model):
        return flat(model).clone()


def _in_parts(world: World) -> None:
    compare(world, _matmul, _redistributed, _tensor_parallel)
    torch.manual_seed(0)
    product = _matmul(world, world.ours)[:144]
    torch.manual_seed(0)
    torch.testing.assert_close(product, (torch.randn(12, 7) @ torch.randn(7, 12)).reshape(-1))


test_tensors_in_parts = on_ranks(1, 2, 3, 4, gloo=True)(_in_parts)


def _matmul(world: World, group: Any) -> Any:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh, parts = _mesh(world), []
    a, b = torch.randn(12, 7), torch.randn(7, 12)
    for left, right in [(Shard(0), Replicate()), (Shard(1), Shard(0)), (Replicate(), Shard(1)), (Shard(0), Shard(1))]:
        product = distribute_tensor(a, mesh, [left]) @ distribute_tensor(b, mesh, [right])
        parts += [product.full_tensor(), product.redistribute(mesh, [Shard(0)]).to_local()]
    return torch.cat([part.reshape(-1) for part in parts])


def _redistributed(world: World, group: Any) -> Any:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh, x = _mesh(world), torch.randn(10, 6)
    kinds = [Shard(0), Shard(1), Replicate()]
    parts = [distribute_tensor(x, mesh, [one]).redistribute(mesh, [two]) for one in kinds for two in kinds]
    partial = DTensor.from_local(torch.randn(10, 6) + world.rank, mesh, [Partial()], run_check=False)
    parts += [partial.redistribute(mesh, [kind]) for kind in kinds]
    parts += [DTensor.from_local(x + world.rank, mesh, [Partial("max")]).redistribute(mesh, [Replicate()])]
    assert all(torch.equal(part.full_tensor(), x) for part in parts[:9])
    return torch.cat([part.to_local().reshape(-1) for part in parts])


def _tensor_parallel(world: World, group: Any) -> Any:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(1)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4))
    model = parallelize_module(model, _mesh(world), plan)
    return flat(train(0, model))  # all ranks see the same data


@on_ranks(1, 2, 3, 4, gloo=True)
def test_functional_collectives(world: World) -> None:
    compare(world, _functional, _functional_gradients)


def _functional(world: World, group: Any) -> Any:
    from torch.distributed import _functional_collectives as fc

    n = world.size
    x = torch.randn(2 * n, 3) + world.rank
    found = [
        fc.all_reduce(x, "sum", group),
        fc.all_reduce(x, "max", group),
        fc.all_gather_tensor(x, 0, group),
        fc.all_gather_tensor(x, 1, group),
        fc.reduce_scatter_tensor(x, "sum", 0, group),
        fc.broadcast(x, n - 1, group),
        fc.all_to_all_single(x, None, None, group),
        *fc.all_reduce_coalesced([x, x + 1], "sum", group),
        *fc.all_gather_into_tensor_coalesced([x, x + 1], group),
        *fc.reduce_scatter_tensor_coalesced([x, x + 1], "sum", [0, 0], group),
    ]
    if n > 1:
        found.append(fc.permute_tensor(x[:, 0].contiguous(), [(rank + 1) % n for rank in range(n)], group))
    return torch.cat([part.reshape(-1) + 0 for part in found])


def _functional_gradients(world: World, group: Any) -> Any:
    from torch.distributed import _functional_collectives as fc
    from torch.distributed.nn import functional as differentiable

    x = torch.randn(2 * world.size, 3, requires_grad=True)
    weight = torch.randn(3) * (world.rank + 1)
    gathered = fc.all_gather_tensor_autograd(x, 0, group)
    scattered = fc.reduce_scatter_tensor_autograd(x, "sum", 0, group)
    total = differentiable.all_reduce(x * weight, group=group)
    ((gathered * weight).sum() + (scattered**2).sum() + (total**2).sum()).backward()
    return x.grad
