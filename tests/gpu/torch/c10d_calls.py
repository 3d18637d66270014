"""Calls of torch.distributed on CPU tensors, and on tensors that `put` moves to a device, for tests of the latter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from c10d import World, everybodys, same, values

Put = Callable[[Any], Any]
SHAPES = [(5,), (300, 7), (0,)]
TYPES = ["float32", "bfloat16", "complex64"]


def compare(world: World, put: Put, get: Put) -> None:
    """Every collective, synchronous and not, on tensors with gaps and without: the same results as on CPU tensors."""

    def gaps(x: Any) -> Any:
        return put(torch.stack([x, x], 1))[:, 0] if x.dim() == 1 else put(x.t().contiguous()).t()

    for later in (False, True):
        for name in _calls(world, "float32", (1,), _as_it_is):
            for dtype in TYPES:
                for shape in SHAPES:
                    cpu = _calls(world, dtype, shape, _as_it_is)[name]
                    gpu = _calls(world, dtype, shape, gaps if later else put)[name]
                    for (call, _), kinds in ((cpu, ("Work", "PlainWork")), (gpu, ("DeviceWork",))):
                        work = call(async_op=later)
                        if later:
                            assert type(work).__name__ in kinds
                            work.wait()
                    for right, found in zip(cpu[1], gpu[1], strict=True):
                        same(torch.empty_like(right).copy_(get(found)), right, name, dtype, shape, later)


def _as_it_is(x: Any) -> Any:
    return x


def _calls(world: World, dtype: str, shape: Any, put: Put) -> dict[str, tuple[Callable[..., Any], list[Any]]]:
    """By name: a collective call, of which one may be made, and its outputs."""
    x = put(values(world, dtype, *shape))
    outs = [put(torch.zeros(shape, dtype=getattr(torch, dtype))) for _ in range(world.size)]
    parts = [put(part) for part in everybodys(world, dtype, *shape)]
    at_root = world.rank == 2
    return {
        "sum": (partial(dist.all_reduce, x), [x]),
        "average": (partial(dist.all_reduce, x, dist.ReduceOp.AVG), [x]),
        "premultiplied": (partial(dist.all_reduce, x, dist._make_nccl_premul_sum(2.0)), [x]),
        "reduce": (partial(dist.reduce, x, 1), [x]),
        "broadcast": (partial(dist.broadcast, x, 1), [x]),
        "all_gather": (partial(dist.all_gather, outs, x), outs),
        "gather": (partial(dist.gather, x, outs if at_root else None, 2), outs),
        "scatter": (partial(dist.scatter, outs[0], parts if at_root else None, 2), outs[:1]),
        "reduce_scatter": (partial(dist.reduce_scatter, outs[0], parts), outs[:1]),
        "all_to_all": (partial(dist.all_to_all, outs, parts), outs),
    }
