"""What is built on torch.distributed (DDP, FSDP, DTensor, ZeRO, checkpoints) gives here what it gives on Gloo.

A case is a function of a process group that returns a tensor; it runs on both backends with the same data. All is in
float64: the backends may add in different orders, and on two ranks, where there is only one, not a bit may differ.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
from c10d import World, run

torch: Any = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

pytestmark = pytest.mark.torch
SIZES = [1, 2, 3, 4]


def compare(world: World, *cases: Any) -> None:
    """Runs cases with ours and then with Gloo as torch's default group."""
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    results: list[list[Any]] = [[], []]
    for found, group in zip(results, (world.ours, world.gloo), strict=True):
        _make_default(group)
        for case in cases:
            torch.manual_seed(0)
            found.append(case(world, group))
    _make_default(world.ours)
    for case, mine, gloos in zip(cases, *results, strict=True):
        assert mine.numel() and mine.isfinite().all(), case.__name__
        exact = world.size <= 2
        torch.testing.assert_close(
            mine, gloos, rtol=0 if exact else 1e-11, atol=0 if exact else 1e-12, msg=case.__name__
        )


def _make_default(group: Any) -> None:
    """Device meshes, and checkpoints, know no other group than torch's default."""
    dist.distributed_c10d._update_default_pg(group)
    from torch.distributed.device_mesh import _mesh_resources

    for name in ("mesh_stack", "child_to_root_mapping", "root_to_flatten_mapping", "mesh_dim_group_options"):
        getattr(_mesh_resources, name, {}).clear()


def network() -> Any:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 33), nn.ReLU(), nn.Linear(33, 17), nn.Tanh(), nn.Linear(17, 4))


def batch(rank: int, step: int) -> tuple[Any, Any]:
    random = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(6, 8, generator=random), torch.randint(0, 4, (6,), generator=random)


def train(rank: int, model: Any, steps: int = 4, optimizer: Any = None) -> Any:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        x, y = batch(rank, step)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def flat(model: Any) -> Any:
    parts = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([part.detach().reshape(-1) for part in parts])


# -- DDP ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", SIZES)
def test_data_parallel(n: int) -> None:
    run(n, _data_parallel)


def _data_parallel(world: World) -> None:
    from pycollective.torch.distributed import Options

    def ddp(**settings: Any) -> Any:
        def case(world: World, group: Any) -> Any:
            # Buckets of about a kilobyte: several are under way at a time.
            return flat(train(world.rank, DistributedDataParallel(network(), process_group=group, **settings)))

        case.__name__ = f"ddp {settings}"
        return case

    small = {"bucket_cap_mb": 0.001}
    plain = ddp(**small)
    compare(
        world,
        plain,
        ddp(),
        ddp(static_graph=True, **small),
        ddp(gradient_as_bucket_view=True, **small),
        ddp(find_unused_parameters=True, **small),
        _unused,
        _no_sync,
        _sparse_embedding,
        _uneven_inputs,
        _zero,
    )
    engine = dist.new_group(backend="pycollective", pg_options=Options(engine=True))
    assert torch.equal(plain(world, engine), plain(world, world.ours))  # fusion changes no bits


class _Skipping(nn.Module):
    """Uses another branch on another rank and in another step."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.branches = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.last = nn.Linear(8, 4)
        self.calls = rank

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.last(self.branches[self.calls % 3](x))


def _unused(world: World, group: Any) -> Any:
    model = _Skipping(world.rank)
    return flat(train(world.rank, DistributedDataParallel(model, process_group=group, find_unused_parameters=True)))


def _no_sync(world: World, group: Any) -> Any:
    model = DistributedDataParallel(network(), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        x, y = batch(world.rank, step)
        if step % 3 < 2:
            with model.no_sync():
                nn.functional.cross_entropy(model(x), y).backward()
        else:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return flat(model)


class _Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(20, 4, sparse=True)
        self.last = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.last(self.table((x.abs() * 10).long() % 20).sum(1))


def _sparse_embedding(world: World, group: Any) -> Any:
    model = DistributedDataParallel(_Embedding(), process_group=group)
    return flat(train(world.rank, model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)))


def _uneven_inputs(world: World, group: Any) -> Any:
    model = DistributedDataParallel(network(), process_group=group)
    with model.join():
        train(world.rank, model, steps=2 + world.rank)
    return flat(model)


def _zero(world: World, group: Any) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(network(), process_group=group)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, group, lr=0.1, momentum=0.9)
    train(world.rank, model, optimizer=optimizer)
    optimizer.consolidate_state_dict(0)
    return flat(model)


# -- communication hooks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3])
def test_communication_hooks(n: int) -> None:
    run(n, _hooks)


def _hooks(world: World) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    bf16 = lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket)  # noqa: E731  by its name torch wants NCCL

    def hooked(hook: Any, state: Any = None, megabytes: float = 0.001) -> Any:
        def final(world: World, group: Any) -> Any:
            model = DistributedDataParallel(network(), process_group=group, bucket_cap_mb=megabytes)
            model.register_comm_hook(state(group) if state else group, hook)
            return flat(train(world.rank, model, steps=6))

        final.__name__ = hook.__name__
        return final

    def power(group: Any) -> Any:
        return PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5)

    compare(world, hooked(default_hooks.allreduce_hook), hooked(powerSGD_hook, power, 25))
    for hook in (default_hooks.fp16_compress_hook, bf16):
        ours, gloos = (hooked(hook)(world, group) for group in (world.ours, world.gloo))
        torch.testing.assert_close(ours, gloos, rtol=1e-2, atol=1e-2)  # Gloo adds in 16 bits, we in 32
    # With several buckets PowerSGD calls from callbacks, on Gloo in any order; here in the same on all ranks.
    ours = hooked(powerSGD_hook, power)(world, world.ours)
    assert torch.isfinite(ours).all()
    first = ours.clone()
    dist.broadcast(first, 0)
    assert torch.equal(first, ours)


# -- FSDP, tensors in parts, checkpoints ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", SIZES)
def test_sharded(n: int) -> None:
    with tempfile.TemporaryDirectory(prefix="pycollective-test-") as folder:
        run(n, _sharded, folder)


def _sharded(world: World, folder: str) -> None:
    from torch.distributed import checkpoint

    def saved(world: World, group: Any) -> Any:
        """Another training starts from the first one's checkpoint."""
        place = Path(folder, group.name())
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

    model = FullyShardedDataParallel(
        network(), process_group=group, device_id=torch.device("cpu"), use_orig_params=True
    )
    train(world.rank, model)
    with FullyShardedDataParallel.summon_full_params(model):
        return flat(model).clone()


@pytest.mark.parametrize("n", SIZES)
def test_tensors_in_parts(n: int) -> None:
    run(n, _in_parts)


def _in_parts(world: World) -> None:
    compare(world, _matmul, _redistributed, _tensor_parallel)
    torch.manual_seed(0)
    product = _matmul(world, world.ours)[:144]
    torch.manual_seed(0)
    torch.testing.assert_close(product, (torch.randn(12, 7) @ torch.randn(7, 12)).reshape(-1))


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


@pytest.mark.parametrize("n", SIZES)
def test_functional_collectives(n: int) -> None:
    run(n, _functional_collectives)


def _functional_collectives(world: World) -> None:
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
