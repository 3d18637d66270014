"""DistributedDataParallel, its communication hooks and ZeRO give the same on this backend as on Gloo."""

from __future__ import annotations

from typing import Any

import pytest
from c10d import World, on_ranks

torch: Any = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from c10d_training import compare, flat, network, train  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from pycollective.torch.distributed import Options  # noqa: E402


def _data_parallel(world: World) -> None:
    def ddp(**settings: Any) -> Any:
        def case(world: World, group: Any) -> Any:
            # Buckets of about a kilobyte: several are in flight at a time.
            return flat(train(world.rank, DistributedDataParallel(network(), process_group=group, **settings)))

        case.__name__ = f"ddp {settings}"
        return case

    small = {"bucket_cap_mb": 0.001}
    plain = ddp(**small)
    others = ddp(), ddp(static_graph=True, **small), ddp(gradient_as_bucket_view=True, **small)
    compare(world, plain, *others, _unused, _sparse_embedding, _uneven_inputs, _zero)
    engine = dist.new_group(backend="pycollective", pg_options=Options(engine=True))
    assert torch.equal(plain(world, engine), plain(world, world.ours))  # fusion changes no bits


test_data_parallel = on_ranks(1, 2, 3, 4, gloo=True)(_data_parallel)


@on_ranks(2, gloo=True)
def test_compiled(world: World) -> None:
    def compiled(world: World, group: Any) -> Any:
        model = DistributedDataParallel(network(), process_group=group)
        return flat(train(world.rank, torch.compile(model, backend="eager"), steps=2))

    compare(world, compiled)


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


class _Words(nn.Module):
    def forward(self, x: Any) -> Any:
        return (x.abs() * 10).long() % 20


def _sparse_embedding(world: World, group: Any) -> Any:
    torch.manual_seed(1)
    layers = _Words(), nn.EmbeddingBag(20, 4, mode="sum", sparse=True), nn.Linear(4, 4)
    model = DistributedDataParallel(nn.Sequential(*layers), process_group=group)
    return flat(train(world.rank, model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)))


def _uneven_inputs(world: World, group: Any) -> Any:
    model = DistributedDataParallel(network(), process_group=group)
    for by_all in (True, False):
        with model.join(divide_by_initial_world_size=by_all):
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


test_communication_hooks = on_ranks(2, 3, gloo=True)(_hooks)
