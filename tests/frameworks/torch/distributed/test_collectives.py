"""Every collective, type and operator gives Gloo's result, or the arithmetic one if Gloo lacks it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from c10d import World, all_gather_single, everybodys, on_ranks, reduce_scatter_single, same, values

torch: Any = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

INTEGERS = ["int8", "int16", "int32", "int64", "uint8"]


@on_ranks(1, 2, 3, 4, gloo=True)
def test_reductions(world: World) -> None:
    ops = dist.ReduceOp
    for dtype in (*INTEGERS, "float16", "bfloat16", "float32", "float64"):
        named = [ops.SUM, ops.PRODUCT, ops.MIN, ops.MAX] + [ops.BAND, ops.BOR, ops.BXOR] * (dtype in INTEGERS)
        for op, shape in itertools.product(named, [(5,), (3, 7), (), (0,)]):
            right = values(world, "int32" if dtype == "int16" else dtype, *shape)  # Gloo lacks that one
            dist.all_reduce(right, op, group=world.gloo)
            same(reduced(world, dtype, shape, op), right.to(getattr(torch, dtype)), dtype, op, shape)
            x, root = values(world, dtype, *shape), world.size - 1
            dist.reduce(x, root, op)
            same(x, right.to(x.dtype) if world.rank == root else values(world, dtype, *shape), "reduce", dtype, op)


def reduced(world: World, dtype: str, shape: tuple[int, ...], op: Any) -> Any:
    x = values(world, dtype, *shape)
    dist.all_reduce(x, op)
    return x


@on_ranks(1, 2, 3, 4)
def test_averages_scaled_sums_and_complex_numbers(world: World) -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64", "complex64", "complex128"):
        total = sum(x.to(torch.complex128) for x in everybodys(world, dtype, 6))
        x = reduced(world, dtype, (6,), dist.ReduceOp.AVG)
        torch.testing.assert_close(x.to(torch.complex128), total / world.size, rtol=1e-2, atol=1e-3)
        if not x.is_complex():
            x = reduced(world, dtype, (6,), dist._make_nccl_premul_sum(0.5))
            torch.testing.assert_close(x.to(torch.complex128), total / 2, rtol=1e-2, atol=1e-3)
    same(reduced(world, "complex64", (2, 3), dist.ReduceOp.SUM), sum(everybodys(world, "complex64", 2, 3)))
    for dtype in ("uint16", "uint32", "uint64"):  # which torch itself cannot add
        total = sum(x.long() for x in everybodys(world, dtype, 3, 2))
        assert torch.equal(reduced(world, dtype, (3, 2), dist.ReduceOp.SUM).long(), total)
    same(reduced(world, "bool", (9,), dist.ReduceOp.MAX), torch.stack(everybodys(world, "bool", 9)).any(0))
    conjugate = values(world, "complex64", 4).conj()
    world.ours.allreduce([conjugate]).wait()
    same(conjugate.resolve_conj(), sum(x.conj().resolve_conj() for x in everybodys(world, "complex64", 4)))
    whole = torch.tensor([-3, 3, 4, 1], dtype=torch.int32)
    dist.all_reduce(x := whole * (world.rank + 1), dist.ReduceOp.AVG)
    total = whole * sum(range(1, world.size + 1))
    same(x, torch.div(total, world.size, rounding_mode="trunc"))  # toward zero


@on_ranks(1, 2, 3, 4)
def test_moving_data(world: World) -> None:
    """Also types that Gloo does not support: all are moved unchanged."""
    n, root = world.size, world.size - 1
    small = ["bool", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "uint16"]
    for dtype in (*INTEGERS, *small, "float32", "float64", "complex64", "complex128"):
        for shape in [(4,), (2, 3), (), (0, 2)]:
            x, all_of_them = values(world, dtype, *shape), everybodys(world, dtype, *shape)
            outs = [torch.empty_like(x) for _ in range(n)]
            dist.all_gather(outs, x)
            for out, right in zip(outs, all_of_them, strict=True):
                same(out, right, "all_gather", dtype, shape)
            mine = [torch.empty_like(x) for _ in range(n)] if world.rank == root else None
            dist.gather(x, mine, root)
            for out, right in zip(mine or [], all_of_them, strict=bool(mine)):
                same(out, right, "gather", dtype, shape)
            out = torch.empty_like(x)
            dist.scatter(out, all_of_them if world.rank == root else None, root)
            same(out, x, "scatter", dtype, shape)
            dist.broadcast(x, root)
            same(x, all_of_them[root], "broadcast", dtype, shape)


@on_ranks(1, 2, 3, 4)
def test_one_tensor_forms(world: World) -> None:
    n = world.size
    for dtype, shape in itertools.product(["float32", "bfloat16", "int64", "complex64"], [(2, 3), (4,)]):
        x = values(world, dtype, *shape)
        out = torch.empty(n * shape[0], *shape[1:], dtype=x.dtype)
        all_gather_single(out, x)
        same(out, torch.cat(everybodys(world, dtype, *shape)), "into one")
        stacked = torch.empty(n, *shape, dtype=x.dtype)
        all_gather_single(stacked, x)
        same(stacked, torch.stack(everybodys(world, dtype, *shape)), "stacked")
        whole, wholes = values(world, dtype, *out.shape), everybodys(world, dtype, *out.shape)
        mine = slice(world.rank * shape[0], (world.rank + 1) * shape[0])
        part = torch.empty_like(x)
        reduce_scatter_single(part, whole)
        same(part, sum(wholes)[mine], "reduce_scatter")
        dist.all_to_all_single(out, whole)
        same(out, torch.cat([source[mine] for source in wholes]), "all_to_all")


@on_ranks(1, 2, 3, 4)
def test_parts_of_different_size(world: World) -> None:
    n, rank = world.size, world.rank
    outs = [torch.empty(r + 1, 2) for r in range(n)]
    dist.all_gather(outs, torch.full((rank + 1, 2), float(rank)))
    assert [(out == r).all().item() and len(out) for r, out in enumerate(outs)] == list(range(1, n + 1))
    part = torch.empty(rank + 1)
    dist.reduce_scatter(part, [torch.full((r + 1,), float(r + rank)) for r in range(n)])
    assert (part == sum(rank + other for other in range(n))).all()

    # Rank s sends r + s + 1 rows to rank r; the row contains source and destination.
    x = torch.cat([torch.full((r + rank + 1, 2), 10.0 * rank + r) for r in range(n)])
    right = torch.cat([torch.full((rank + s + 1, 2), 10.0 * s + rank) for s in range(n)])
    for later in (False, True):
        out = torch.empty_like(right)
        splits = [[rank + other + 1 for other in range(n)]] * 2
        work = dist.all_to_all_single(out, x, *splits, async_op=later)
        if later:
            work.wait()
        assert torch.equal(out, right)
    outs = [torch.empty(rank + s + 1, 2) for s in range(n)]
    dist.all_to_all(outs, list(x.split([r + rank + 1 for r in range(n)])))
    assert torch.equal(torch.cat(outs), right)
    nothing = torch.empty(0)
    dist.all_to_all_single(nothing, torch.empty(0), [0] * n, [0] * n)
