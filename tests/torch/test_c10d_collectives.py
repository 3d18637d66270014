"""Every collective, type and operator gives what Gloo gives, or what arithmetic says where Gloo lacks it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from c10d import World, run

torch: Any = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

pytestmark = pytest.mark.torch
SIZES = [1, 2, 3, 4]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8"]
GLOO_LACKS = {"int16"}


def values(world: World, dtype: str, *shape: int, rank: int | None = None) -> Any:
    """Small whole numbers, so that sums are exact in every type and order; the same for the same rank."""
    rank = world.rank if rank is None else rank
    raw = torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(rank))
    if dtype.startswith("complex"):
        return torch.complex(raw.double(), raw.flip(0).double()).to(getattr(torch, dtype))
    return (raw.abs() if dtype.startswith(("uint", "bool")) else raw).to(getattr(torch, dtype))


def everybodys(world: World, dtype: str, *shape: int) -> list[Any]:
    return [values(world, dtype, *shape, rank=rank) for rank in range(world.size)]


def same(got: Any, right: Any, *label: object) -> None:
    assert got.dtype == right.dtype and got.shape == right.shape, label
    raw = [x.contiguous().reshape(-1).view(torch.uint8) for x in (got, right)]
    assert torch.equal(*raw), (*label, got, right)


@pytest.mark.parametrize("n", SIZES)
def test_reductions(n: int) -> None:
    run(n, _reductions)


def _reductions(world: World) -> None:
    ops = dist.ReduceOp
    for dtype in (*INTEGERS, "float16", "bfloat16", "float32", "float64"):
        named = [ops.SUM, ops.PRODUCT, ops.MIN, ops.MAX] + [ops.BAND, ops.BOR, ops.BXOR] * (dtype in INTEGERS)
        for op, shape in itertools.product(named, [(5,), (3, 7), (), (0,)]):
            on_gloo = dtype not in GLOO_LACKS
            right = values(world, dtype if on_gloo else "int32", *shape)
            dist.all_reduce(right, op, group=world.gloo)
            same(reduced(world, dtype, shape, op), right.to(getattr(torch, dtype)), dtype, op, shape)
            x = values(world, dtype, *shape)
            root = world.size - 1
            dist.reduce(x, root, op)
            same(x, right.to(x.dtype) if world.rank == root else values(world, dtype, *shape), "reduce", dtype, op)


def reduced(world: World, dtype: str, shape: tuple[int, ...], op: Any) -> Any:
    x = values(world, dtype, *shape)
    dist.all_reduce(x, op)
    return x


@pytest.mark.parametrize("n", SIZES)
def test_averages_scaled_sums_and_complex_numbers(n: int) -> None:
    run(n, _averaged, gloo=False)


def _averaged(world: World) -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64", "complex64", "complex128"):
        total = sum(x.to(torch.complex128) for x in everybodys(world, dtype, 6))
        x = reduced(world, dtype, (6,), dist.ReduceOp.AVG)
        torch.testing.assert_close(x.to(torch.complex128), total / world.size, rtol=1e-2, atol=1e-3)
        if not x.is_complex():
            x = reduced(world, dtype, (6,), dist._make_nccl_premul_sum(0.5))
            torch.testing.assert_close(x.to(torch.complex128), total / 2, rtol=1e-2, atol=1e-3)
    same(reduced(world, "complex64", (2, 3), dist.ReduceOp.SUM), sum(everybodys(world, "complex64", 2, 3)))
    same(reduced(world, "bool", (9,), dist.ReduceOp.MAX), torch.stack(everybodys(world, "bool", 9)).any(0))
    conjugate = values(world, "complex64", 4).conj()
    world.ours.allreduce([conjugate]).wait()
    same(conjugate.resolve_conj(), sum(x.conj().resolve_conj() for x in everybodys(world, "complex64", 4)))


def test_averages_of_whole_numbers_are_rounded_toward_zero() -> None:
    run(2, _averages, gloo=False)


def _averages(world: World) -> None:
    x = torch.tensor([-3 * world.rank, 3 * world.rank, 4, world.rank], dtype=torch.int32)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    assert x.tolist() == [-1, 1, 4, 0]


@pytest.mark.parametrize("n", SIZES)
def test_moving_data(n: int) -> None:
    run(n, _moving, gloo=False)


def _moving(world: World) -> None:
    """Also types that Gloo does not take: all are moved as they are."""
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


@pytest.mark.parametrize("n", SIZES)
def test_one_tensor_forms(n: int) -> None:
    run(n, _one_tensor_forms)


def _one_tensor_forms(world: World) -> None:
    n = world.size
    for dtype, shape in itertools.product(["float32", "bfloat16", "int64", "complex64"], [(2, 3), (4,)]):
        x = values(world, dtype, *shape)
        out = torch.empty(n * shape[0], *shape[1:], dtype=x.dtype)
        dist.all_gather_single(out, x)
        same(out, torch.cat(everybodys(world, dtype, *shape)), "into one")
        stacked = torch.empty(n, *shape, dtype=x.dtype)
        dist.all_gather_single(stacked, x)
        same(stacked, torch.stack(everybodys(world, dtype, *shape)), "stacked")
        total = sum(everybodys(world, dtype, n * shape[0], *shape[1:]))
        part = torch.empty(*shape, dtype=x.dtype)
        dist.reduce_scatter_single(part, values(world, dtype, n * shape[0], *shape[1:]))
        same(part, total[world.rank * shape[0] :][: shape[0]], "reduce_scatter")
    outs = {group: torch.empty(2) for group in (world.ours, world.gloo)}
    for group, out in outs.items():
        dist.reduce_scatter(out, [values(world, "float32", 2) + r for r in range(n)], group=group)
    same(*outs.values())


@pytest.mark.parametrize("n", SIZES)
def test_parts_of_different_size(n: int) -> None:
    run(n, _uneven, gloo=False)


def _uneven(world: World) -> None:
    n, rank = world.size, world.rank
    outs = [torch.empty(r + 1, 2) for r in range(n)]
    dist.all_gather(outs, torch.full((rank + 1, 2), float(rank)))
    assert [(out == r).all().item() and len(out) for r, out in enumerate(outs)] == list(range(1, n + 1))
    part = torch.empty(rank + 1)
    dist.reduce_scatter(part, [torch.full((r + 1,), float(r + rank)) for r in range(n)])
    assert (part == sum(rank + other for other in range(n))).all()

    # Rank s sends r + s + 1 rows to rank r; the row says who sends it to whom.
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


@pytest.mark.parametrize("n", SIZES)
def test_exchange_of_equal_parts(n: int) -> None:
    run(n, _equal_parts)


def _equal_parts(world: World) -> None:
    for dtype in ("float32", "int64", "bfloat16", "complex64"):
        x = values(world, dtype, 2 * world.size, 3)
        out, right = torch.empty_like(x), []
        dist.all_to_all_single(out, x)
        for source in everybodys(world, dtype, 2 * world.size, 3):
            right.append(source[2 * world.rank :][:2])
        same(out, torch.cat(right), dtype)


@pytest.mark.parametrize("n", SIZES)
def test_tensors_that_are_not_contiguous(n: int) -> None:
    run(n, _strided, gloo=False)


def _strided(world: World) -> None:
    n, root = world.size, world.size - 1

    def views(rank: int) -> list[Any]:
        base = torch.arange(24.0).reshape(4, 6) + 100 * rank
        image = base.reshape(1, 2, 3, 4).clone(memory_format=torch.channels_last)
        return [base.clone().t(), base.clone()[:, ::2], base.clone()[1:3], base.clone()[:, 1], image]

    for i, x in enumerate(views(world.rank)):
        right = sum(views(rank)[i] for rank in range(n))
        dist.all_reduce(x)
        assert torch.equal(x, right) and x.stride() == views(0)[i].stride()
        x = views(world.rank)[i]
        dist.broadcast(x, root)
        assert torch.equal(x, views(root)[i])
        x = views(world.rank)[i]
        outs = [torch.empty_like(x) for _ in range(n)]
        dist.all_gather(outs, x)
        assert all(torch.equal(out, views(rank)[i]) for rank, out in enumerate(outs))
        whole = torch.zeros(n, *x.shape)
        dist.all_gather(list(whole), x)  # parts of one storage: filled in place
        assert all(torch.equal(out, views(rank)[i]) for rank, out in enumerate(whole))
        out = views(0)[i].zero_()
        dist.scatter(out, [views(rank)[i] for rank in range(n)] if world.rank == root else None, root)
        assert torch.equal(out, x)
        dist.reduce(x, root)
        assert torch.equal(x, right if world.rank == root else views(world.rank)[i])


@pytest.mark.parametrize("n", SIZES)
def test_sparse_tensors(n: int) -> None:
    run(n, _sparse)


def _sparse(world: World) -> None:
    def mine(entries: int) -> Any:
        at = torch.randint(0, 9, (1, entries), generator=torch.Generator().manual_seed(world.rank))
        return torch.sparse_coo_tensor(at, torch.ones(entries, 2) + world.rank, (9, 2), check_invariants=False)

    for entries in (4, world.rank, 0):
        outs = []
        for group in (world.ours, world.gloo):
            x = mine(entries)
            dist.all_reduce(x, group=group)
            outs.append(x.to_dense())
        same(*outs)
    x = mine(3)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    total = mine(3).to_dense()
    dist.all_reduce(total, group=world.gloo)
    torch.testing.assert_close(x.to_dense(), total / world.size)
    with pytest.raises(TypeError, match="sparse tensors takes SUM and AVG"):
        dist.all_reduce(mine(2), dist.ReduceOp.MAX)


@pytest.mark.parametrize("n", SIZES)
def test_objects(n: int) -> None:
    run(n, _objects, gloo=False)


def _objects(world: World) -> None:
    n, rank, root = world.size, world.rank, world.size - 1
    mine = {"rank": rank, "text": "x" * (10 * rank)}
    right = [{"rank": r, "text": "x" * (10 * r)} for r in range(n)]
    found: list[Any] = [None] * n
    dist.all_gather_object(found, mine)
    assert found == right
    found = [None] * n if rank == root else None
    dist.gather_object(mine, found, root)
    assert found == (right if rank == root else None)
    told = [mine, rank]
    dist.broadcast_object_list(told, root)
    assert told == [right[root], root]
    got: list[Any] = [None]
    dist.scatter_object_list(got, right if rank == root else None, root)
    assert got == [mine]
    if n > 1 and rank < 2:
        if rank == 0:
            dist.send_object_list([mine, "hello"], 1)
        else:
            told = [None, None]
            assert dist.recv_object_list(told, 0) == 0
            assert told == [right[0], "hello"]


@pytest.mark.parametrize("n", SIZES)
def test_coalesced(n: int) -> None:
    run(n, _coalesced)


def _coalesced(world: World) -> None:
    n = world.size
    for later in (False, True):
        xs = [values(world, "float32", 3, i + 1) for i in range(5)]  # small, of another type, strided, long
        xs += [values(world, "float64", 7), values(world, "float32", 4, 3).t(), values(world, "float32", 600_000)]
        right = [x.clone() for x in xs]
        with dist._coalescing_manager(async_ops=later) as manager:
            for x in xs:
                dist.all_reduce(x)
        if later:
            manager.wait()
        for x, y in zip(xs, right, strict=True):
            dist.all_reduce(y, group=world.gloo)
            same(x, y, x.shape)
        ins = [values(world, "int64", i + 1) for i in range(3)]
        outs = [torch.zeros(n * (i + 1), dtype=torch.int64) for i in range(3)]
        with dist._coalescing_manager(async_ops=later) as manager:
            for out, x in zip(outs, ins, strict=True):
                dist.all_gather_single(out, x)
        if later:
            manager.wait()
        for i, out in enumerate(outs):
            same(out, torch.cat(everybodys(world, "int64", i + 1)))
        parts = [torch.zeros(i + 1, dtype=torch.int64) for i in range(3)]
        with dist._coalescing_manager(async_ops=later) as manager:
            for part, whole in zip(parts, outs, strict=True):
                dist.reduce_scatter_single(part, whole)
        if later:
            manager.wait()
        for i, part in enumerate(parts):
            same(part, n * everybodys(world, "int64", i + 1)[world.rank])


def test_wrong_arguments_are_refused_before_anything_is_sent() -> None:
    run(2, _wrong, gloo=False)


def _wrong(world: World) -> None:
    x = torch.ones(4)
    refused = [
        (TypeError, "layout", lambda: dist.broadcast(torch.eye(2).to_sparse(), 0)),
        (TypeError, "meta", lambda: dist.all_reduce(torch.ones(2, device="meta"))),
        (TypeError, "cannot be reduced", lambda: dist.all_reduce(x.to(torch.float8_e4m3fnuz))),
        (TypeError, "not defined", lambda: world.ours.allreduce([x + 0j], _with(dist.ReduceOp.MAX))),
        (ValueError, "output of 3", lambda: dist.all_gather([torch.ones(3)] * 2, x)),
        (ValueError, "for 2 ranks|should be", lambda: dist.all_gather([x], x)),
        (ValueError, "3 rows", lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3))),
        (ValueError, "splits", lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), [2, 2], [1, 2])),
        (ValueError, "elements", lambda: dist.all_gather_single(torch.ones(7), torch.ones(4))),
        (ValueError, "parts", lambda: dist.reduce_scatter_single(torch.ones(3), torch.ones(4))),
        (ValueError, "one tensor", lambda: world.ours.allreduce([x, x])),
        (ValueError, "root", lambda: dist.broadcast(x, group_src=5)),
        (TypeError, "band", lambda: dist.all_reduce(x, dist.ReduceOp.BAND)),
    ]
    for error, text, call in refused:
        with pytest.raises(error, match=text):
            call()
    dist.all_reduce(x)  # the group is none the worse
    assert x.tolist() == [2.0] * 4


def _with(op: Any) -> Any:
    opts = dist.AllreduceOptions()
    opts.reduceOp = op
    return opts


@pytest.mark.parametrize("n", [2, 3])
def test_parameters_and_other_tensors_with_gradients(n: int) -> None:
    run(n, _parameters, gloo=False)


def _parameters(world: World) -> None:
    p = torch.nn.Parameter(torch.full((3,), float(world.rank)))
    dist.broadcast(p, world.size - 1)
    assert p.tolist() == [world.size - 1.0] * 3 and p.requires_grad and p.is_leaf
    p.grad = torch.full((3,), world.rank + 1.0)
    dist.all_reduce(p.grad)
    assert p.grad.tolist() == [world.size * (world.size + 1) / 2] * 3
    storage = p.untyped_storage()
    storage.resize_(0)  # FSDP does that to what it has sent
    storage.resize_(12)
