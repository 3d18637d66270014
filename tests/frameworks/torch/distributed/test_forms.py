"""Tensors of other layouts, objects, several tensors at once, and rejected arguments."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest
from c10d import World, all_gather_single, everybodys, forms, on_ranks, reduce_scatter_single, same, values

torch: Any = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from pycollective.torch.distributed import Options  # noqa: E402


@on_ranks(1, 2, 3, 4)
def test_tensors_that_are_not_contiguous(world: World) -> None:
    n, root = world.size, world.size - 1

    def views(rank: int) -> list[Any]:
        base = torch.arange(24.0).reshape(4, 6) + 100 * rank
        order = torch.contiguous_format if rank % 2 else torch.channels_last  # as torch allows, not the same everywhere
        image = base.reshape(1, 2, 3, 4).clone(memory_format=order)
        return [base.clone().t(), base.clone()[:, ::2], base.clone()[1:3], base.clone()[:, 1], image]

    for i, x in enumerate(views(world.rank)):
        right = sum(views(rank)[i] for rank in range(n))
        dist.all_reduce(x)
        assert torch.equal(x, right) and x.stride() == views(world.rank)[i].stride()
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


@on_ranks(2)
def test_strides_of_axes_without_a_second_element(world: World) -> None:
    for dtype in (torch.complex64, torch.float32, torch.uint16):  # some are moved as bytes
        base = torch.full((3, 2), world.rank).to(dtype)
        for x in (base[:1, 0], base[:0, 0], base[:1, 1].unsqueeze(0)):
            outs = [torch.empty_like(x) for _ in range(2)]
            dist.all_gather(outs, x)
            assert [out.tolist() for out in outs] == [torch.full_like(x, r).tolist() for r in range(2)]
            dist.broadcast(x, 1)
            assert x.tolist() == outs[1].tolist()


@on_ranks(1, 2, 3, 4, gloo=True)
def test_sparse_tensors(world: World) -> None:
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
    with pytest.raises(TypeError, match="sparse tensors supports SUM and AVG"):
        dist.all_reduce(mine(2), dist.ReduceOp.MAX)


@on_ranks(1, 2, 3, 4)
def test_objects(world: World) -> None:
    n, rank, root = world.size, world.rank, world.size - 1
    mine = {"rank": rank, "text": "x" * (10 * rank)}
    right = [{"rank": r, "text": "x" * (10 * r)} for r in range(n)]
    found: list[Any] = [None] * n
    dist.all_gather_object(found, mine)
    assert found == right
    found = [None] * n if rank == root else None
    dist.gather_object(mine, found, root)
    assert found == (right if rank == root else None)
    objects = [mine, rank]
    dist.broadcast_object_list(objects, root)
    assert objects == [right[root], root]
    got: list[Any] = [None]
    dist.scatter_object_list(got, right if rank == root else None, root)
    assert got == [mine]
    if n > 1 and rank < 2:
        if rank == 0:
            dist.send_object_list([mine, "hello"], 1)
        else:
            objects = [None, None]
            assert dist.recv_object_list(objects, 0) == 0
            assert objects == [right[0], "hello"]


def as_one(later: bool, call: Any, *arguments: Any) -> None:
    """Calls with each of some arguments that torch makes as one."""
    with dist._coalescing_manager(async_ops=later) as manager:
        for each in zip(*arguments, strict=True):
            call(*each)
    if later:
        manager.wait()


@on_ranks(1, 2, 3, 4, gloo=True)
def test_coalesced(world: World) -> None:
    n = world.size
    for later in (False, True):
        xs = [values(world, "float32", 3, i + 1) for i in range(5)]  # small, of another type, strided, long
        xs += [values(world, "float64", 7), values(world, "float32", 4, 3).t(), values(world, "float32", 600_000)]
        right = [x.clone() for x in xs]
        as_one(later, dist.all_reduce, xs)
        for x, y in zip(xs, right, strict=True):
            dist.all_reduce(y, group=world.gloo)
            same(x, y, x.shape)
        ins = [values(world, "int64", i + 1) for i in range(3)]
        outs = [torch.zeros(n * (i + 1), dtype=torch.int64) for i in range(3)]
        as_one(later, all_gather_single, outs, ins)
        for i, out in enumerate(outs):
            same(out, torch.cat(everybodys(world, "int64", i + 1)))
        as_one(later, reduce_scatter_single, ins, outs)
        for i, part in enumerate(ins):
            same(part, n * everybodys(world, "int64", i + 1)[world.rank])


@on_ranks(2)
def test_wrong_arguments_are_refused_before_anything_is_sent(world: World) -> None:
    x = torch.ones(4)
    refused = [
        (TypeError, "layout", lambda: dist.broadcast(torch.eye(2).to_sparse(), 0)),
        (TypeError, "meta", lambda: dist.all_reduce(torch.ones(2, device="meta"))),
        (TypeError, "cannot be reduced", lambda: dist.all_reduce(x.to(torch.float8_e4m3fnuz))),
        (TypeError, "not defined", lambda: world.ours.allreduce([x + 0j], dist.ReduceOp.MAX)),
        (ValueError, "output of 3", lambda: dist.all_gather([torch.ones(3)] * 2, x)),
        (ValueError, "for 2 ranks|should be", lambda: dist.all_gather([x], x)),
        (ValueError, "3 rows", lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3))),
        (ValueError, "splits", lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), [2, 2], [1, 2])),
        (ValueError, "elements", lambda: all_gather_single(torch.ones(7), torch.ones(4))),
        (ValueError, "parts", lambda: reduce_scatter_single(torch.ones(3), torch.ones(4))),
        (ValueError, "one tensor", lambda: world.ours.allreduce([x, x])),
        (ValueError, "root", lambda: dist.broadcast(x, group_src=5)),
        (TypeError, "band", lambda: dist.all_reduce(x, dist.ReduceOp.BAND)),
    ]
    for error, text, call in refused:
        with pytest.raises(error, match=text):
            call()
    dist.all_reduce(x)  # the group is still usable
    assert x.tolist() == [2.0] * 4


@on_ranks(2, 3)
def test_parameters_and_other_tensors_with_gradients(world: World) -> None:
    p = torch.nn.Parameter(torch.full((3,), float(world.rank)))
    dist.broadcast(p, world.size - 1)
    assert p.tolist() == [world.size - 1.0] * 3 and p.requires_grad and p.is_leaf
    p.grad = torch.full((3,), world.rank + 1.0)
    dist.all_reduce(p.grad)
    assert p.grad.tolist() == [world.size * (world.size + 1) / 2] * 3
    storage = p.untyped_storage()
    storage.resize_(0)  # FSDP does that to what it has sent
    storage.resize_(12)


@on_ranks(1, 2, 3, 4)
def test_in_place(world: World) -> None:
    """The input is a part of the output, or the reverse, as in FSDP."""
    n, rank = world.size, world.rank
    for later in (False, True):
        for length in (3, 200_000):
            out = torch.full((n, length), -1.0)
            out[rank] = torch.arange(length) + rank
            work = all_gather_single(out.view(-1), out[rank], async_op=later)
            if later:
                work.wait()
            assert torch.equal(out, torch.arange(length) + torch.arange(n).unsqueeze(1))
            rows = list(out.clone())
            dist.all_gather(rows, rows[rank])
            assert torch.equal(torch.stack(rows), out)
            whole = torch.arange(float(n * length)).view(n, length) + rank
            right = (n * whole - n * rank + sum(range(n)))[rank].clone()
            work = reduce_scatter_single(whole[rank], whole.view(-1), async_op=later)
            if later:
                work.wait()
            assert torch.equal(whole[rank], right)


@on_ranks(2)
def test_shorter_forms_of_the_groups_methods(world: World) -> None:
    """What torch's own groups accept besides an options object."""
    group, op = world.ours, dist.ReduceOp.MAX
    x = torch.full((4,), float(world.rank))
    group.allreduce(x, op).wait()
    group.allreduce([x]).wait()
    assert x.tolist() == [2.0] * 4
    group.broadcast(x.fill_(world.rank), 1).wait()
    assert x.tolist() == [1.0] * 4
    group.reduce(x.fill_(world.rank + 3), 0, op).wait()
    assert x.tolist() == [4.0] * 4
    outs = [torch.empty(4), torch.empty(4)]
    group.allgather(outs, x, timedelta(seconds=9)).wait()
    group.gather(outs if world.rank == 1 else [], x, 1).wait()
    group.scatter(x, outs if world.rank == 1 else [], 1).wait()
    group.reduce_scatter(x, outs, op).wait()
    assert x.tolist() == [4.0] * 4
    group.all_to_all_single(torch.cat(outs), torch.cat(outs), [], []).wait()
    group.barrier().wait()
    group.barrier(timedelta(seconds=9)).wait()


@on_ranks(1)
def test_profiler(world: World) -> None:
    x = torch.ones(3)
    fused = dist.new_group(pg_options=Options(engine=True))
    dist.all_reduce(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
        dist.all_reduce(x)
        dist.broadcast(x, 0, async_op=True).wait()
        dist.all_to_all_single(torch.empty(3), x)
        dist.barrier()
        fused.allreduce_coalesced([x, torch.ones(2)])
    names = [event.name for event in trace.events() if event.name.startswith("pycollective:")]
    expected = ("all_reduce", "broadcast", "all_to_all", "barrier", "all_reduce")
    assert names == [f"pycollective:{name}" for name in expected]


@on_ranks(2, 3)
def test_the_latency_path_and_what_it_leaves_to_the_general_one(world: World) -> None:
    n = world.size
    base = torch.full((2, 3), world.rank + 1.0)
    for later, op in itertools.product((False, True), (dist.ReduceOp.SUM, dist.ReduceOp.AVG)):
        others = {"0-d": base[0, 0].clone(), "complex": torch.complex(base, base), "half": base.half()}
        for name, x in (forms(base) | others).items():
            with torch.no_grad(), torch.inference_mode(name == "inference"):
                right = x.clone() / (world.rank + 1) * sum(range(1, n + 1)) / (n if op == dist.ReduceOp.AVG else 1)
                work = dist.all_reduce(x, op, async_op=later)
                if later:
                    work.wait()
                assert torch.allclose(x, right), (name, later, op)
    dist.all_reduce(torch.empty(0))
    # A pending call on the same memory is not overtaken, nor one on a part of it.
    x = torch.ones(60_000)
    works = [dist.all_reduce(part, async_op=True) for part in (x, x[:10], x[5:])]
    dist.all_reduce(x)
    assert works[0].is_completed()
    assert x[0] == n**3 and x[7] == n**4 and x[20] == n**3
