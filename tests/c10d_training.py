"""Trainings that run on two backends, for comparison.

A case is a function of a process group that returns a tensor; it runs on both backends with the same data. All of it is
in float64: the backends may add in different orders. On two ranks there is only one order, and the bits must be equal.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from c10d import World
from torch import nn


def compare(world: World, *cases: Any) -> None:
    """Runs cases with our backend and then with Gloo as torch's default group."""
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
    """Device meshes and checkpoints support only torch's default group."""
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
