"""Calls of torch.distributed on CPU tensors, and on tensors that `put` moves to a device, for tests of the latter."""

from __future__ import annotations

from collections.abc import Callable
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
        for one in CALLS:
            for dtype in TYPES:
                for shape in SHAPES:
                    cpu, gpu = one(world, dtype, shape, _as_it_is), one(world, dtype, shape, gaps if later else put)
                    for tensors, kinds in ((cpu, ("Work", "PlainWork")), (gpu, ("DeviceWork",))):
                        work = tensors.pop(0)(later)
                        if later:
                            assert type(work).__name__ in kinds
                            work.wait()
                    for right, found in zip(cpu, gpu, strict=True):
                        same(torch.empty_like(right).copy_(get(found)), right, one.__name__, dtype, shape, later)


def _as_it_is(x: Any) -> Any:
    return x


def _all_reduce(world: World, dtype: str, shape: Any, put: Put) -> list[Any]:
    x = put(values(world, dtype, *shape))
    return [lambda later: dist.all_reduce(x, async_op=later), x]


def _average(world: World, dtype: str, shape: Any, put: Put) -> list[Any]:
    x = put(values(world, dtype, *shape))
    return [lambda later: dist.all_reduce(x, dist.ReduceOp.AVG, async_op=later), x]


def _premultiplied(world: World, dtype: str, shape: Any, put: Put) -> list[Any]:
    x = put(values(world, dtype, *shape))
    op = dist._make_nccl_premul_sum(2.0)
    return [lambda later: dist.all_reduce(x, op, async_op=later), x]


def _reduce(world: World, dtype: str, shape: Any, put: Put) -> list[Any]:
    x = put(values(world, dtype, *shape))
    return [lambda later: dist.reduce(x, 1, async_op=later), x]


def _broadcast(world: World, dtype: str, shape: Any, put: Put) -> list[Any]:
    x = put(values(world, dtype, *shape))
    return [lambda later: dist.broadcast(x, 1, async_op=later), x]


def _outputs(world: World, dtype: str, shape: Any, put: Any) -> list[Any]:
    return [put(torch.zeros(shape, dtype=getattr(torch, dtype))) for _ in range(world.size)]


def _all_gather(world: World, dtype: str, shape: Any, put: Put) -> list[Any]:
    x, outs = put(values(world, dtype, *shape)), _outputs(world, dtype, shape, put)
    return [lambda later: dist.all_gather(outs, x, async_op=later), *outs]


def _gather(world: World, dtype: str, shape: Any, put: Put) -> list[Any]:
    x, outs = put(values(world, dtype, *shape)), _outputs(world, dtype, shape, put)
    mine = outs if world.rank == 2 else None
    return [lambda later: dist.gather(x, mine, 2, async_op=later), *outs]


def _scatter(world: World, dtype: str, shape: Any, put: Put) -> list[Any]:
    out, parts = _outputs(world, dtype, shape, put)[0], [put(x) for x in everybodys(world, dtype, *shape)]
    mine = parts if world.rank == 2 else None
    return [lambda later: dist.scatter(out, mine, 2, async_op=later), out]


def _reduce_scatter(world: World, dtype: str, shape: Any, put: Put) -> list[Any]:
    out, parts = _outputs(world, dtype, shape, put)[0], [put(x) for x in everybodys(world, dtype, *shape)]
    return [lambda later: dist.reduce_scatter(out, parts, async_op=later), out]


def _all_to_all(world: World, dtype: str, shape: Any, put: Put) -> list[Any]:
    outs, parts = _outputs(world, dtype, shape, put), [put(values(world, dtype, *shape)) for _ in range(world.size)]
    return [lambda later: dist.all_to_all(outs, parts, async_op=later), *outs]


CALLS = (_all_reduce, _average, _premultiplied, _reduce, _broadcast, _all_gather, _gather, _scatter, _reduce_scatter)
CALLS = (*CALLS, _all_to_all)
