"""The operations of pycollective.torch against arithmetic, on 1 to 4 ranks."""

from __future__ import annotations

from typing import Any

import pytest
from c10d import same
from hvd import with_ranks

torch: Any = pytest.importorskip("torch")
from pycollective.hvd import result_memory  # noqa: E402
from pycollective.torch.hvd import tensors  # noqa: E402

INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
REALS = ("float16", "bfloat16", "float32", "float64")
SHAPES = ((), (1,), (5,), (17, 3), (0, 4), (3, 300, 7))


def of_rank(rank: int, shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    """Small integers: sums are exact in every type."""
    values = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(100 * seed + rank))
    return values.to(getattr(torch, dtype))


def all_contributions(n: int, shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    return torch.stack([of_rank(rank, shape, dtype, seed) for rank in range(n)])


@with_ranks(1, 2, 3, 4)
def test_allreduce(hvd: Any) -> None:
    n, r = hvd.size(), hvd.rank()
    for dtype in (*INTEGERS, *REALS):
        for shape in SHAPES:
            x, everything = of_rank(r, shape, dtype), all_contributions(n, shape, dtype).double()
            for op, right in (
                (hvd.Sum, everything.sum(0)),
                (hvd.Min, everything.amin(0)),
                (hvd.Max, everything.amax(0)),
                (hvd.Product, everything.prod(0)),
            ):
                same(hvd.allreduce(x, op=op), right.to(x.dtype))
            same(x, of_rank(r, shape, dtype))  # unchanged
            assert hvd.allreduce_(x, op=hvd.Sum) is x
            same(x, everything.sum(0).to(x.dtype))
    mean = all_contributions(n, (9,), "float32").mean(0)
    x = of_rank(r, (9,), "float32")
    torch.testing.assert_close(hvd.allreduce(x), mean)
    handles = [hvd.allreduce_async(x, name="a"), hvd.allreduce_async_(x.clone(), name="b", op=hvd.Sum)]
    torch.testing.assert_close(hvd.synchronize(handles[1]), mean * n)
    while not hvd.poll(handles[0]):
        pass
    torch.testing.assert_close(hvd.synchronize(handles[0]), mean)
    assert hvd.synchronize(handles[0]) is None
    torch.testing.assert_close(hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), mean * n * 2)
    same(hvd.allreduce(of_rank(r, (7,), "bool"), op=hvd.Sum), all_contributions(n, (7,), "bool").any(0))
    for kind, tolerance in ((hvd.Compression.fp16, 1e-3), (hvd.Compression.bf16, 1e-2)):
        found = hvd.allreduce(x / 3, compression=kind)
        torch.testing.assert_close(found, mean / 3, rtol=tolerance, atol=tolerance)
        same(hvd.allreduce(torch.tensor([r]), compression=kind, op=hvd.Max), torch.tensor([n - 1]))
    with pytest.warns(DeprecationWarning):
        torch.testing.assert_close(hvd.allreduce(x, average=False), mean * n)
    with pytest.raises(ValueError, match="supersedes"):
        hvd.allreduce(x, average=True, op=hvd.Sum)


@with_ranks(1, 2, 3, 4)
def test_groups(hvd: Any) -> None:
    n, r = hvd.size(), hvd.rank()
    shapes = [(3,), (4, 5), (), (1000,)]
    mine = [of_rank(r, shape, "float32", i) for i, shape in enumerate(shapes)]
    sums = [all_contributions(n, shape, "float32", i).sum(0) for i, shape in enumerate(shapes)]
    for found in (
        hvd.grouped_allreduce(mine, op=hvd.Sum),
        hvd.synchronize(hvd.grouped_allreduce_async(mine, op=hvd.Sum, name="g")),
        hvd.grouped_allreduce_([x.clone() for x in mine], op=hvd.Sum),
        hvd.synchronize(hvd.grouped_allreduce_async_([x.clone() for x in mine], op=hvd.Sum)),
    ):
        for got, right in zip(found, sums, strict=True):
            same(got, right)
    assert hvd.grouped_allreduce([]) == []
    rows = [torch.full((r + 1 + i, 2), float(r)) for i in range(2)]
    for i, joined in enumerate(hvd.grouped_allgather(rows)):
        same(joined, torch.cat([torch.full((q + 1 + i, 2), float(q)) for q in range(n)]))
    table = [torch.arange(2.0 * n + 1), torch.ones(n, 3)]
    for got, whole in zip(hvd.grouped_reducescatter(table, op=hvd.Sum), table, strict=True):
        same(got, torch.tensor_split(whole * n, n)[r])


@with_ranks(1, 2, 3, 4)
def test_moving(hvd: Any) -> None:
    n, r = hvd.size(), hvd.rank()
    for dtype in ("bool", *INTEGERS, *REALS):
        rows = of_rank(r, (r + 1, 3), dtype)
        same(hvd.allgather(rows), torch.cat([of_rank(q, (q + 1, 3), dtype) for q in range(n)]))
        for root in range(n):
            same(hvd.broadcast(rows[:1], root), of_rank(root, (root + 1, 3), dtype)[:1])
            x = of_rank(r, (2, 2), dtype)
            assert hvd.broadcast_(x, root) is x
            same(x, of_rank(root, (2, 2), dtype))
    same(hvd.allgather(torch.tensor(r)), torch.arange(n))
    assert hvd.allgather(torch.empty(0 if r else 2)).shape == (2,)
    same(
        hvd.alltoall(torch.arange(2 * n) + 10 * r),
        torch.cat([10 * q + torch.arange(2 * r, 2 * r + 2) for q in range(n)]),
    )
    x = torch.arange(3.0 * n + 1)
    torch.testing.assert_close(hvd.reducescatter(x), torch.tensor_split(x, n)[r])
    same(hvd.reducescatter(x, op=hvd.Sum), torch.tensor_split(x * n, n)[r])
    hvd.barrier()


@with_ranks(1, 2, 3, 4)
def test_adasum(hvd: Any) -> None:
    n, r = hvd.size(), hvd.rank()
    for dtype in (torch.float16, torch.float32, torch.float64):
        parallel, orthogonal = torch.full((4,), 3.0, dtype=dtype), torch.eye(4, dtype=dtype)
        x = [parallel, orthogonal[r]]
        for found in (hvd.grouped_allreduce(x, op=hvd.Adasum), [hvd.allreduce(each, op=hvd.Adasum) for each in x]):
            same(found[0], parallel)  # the mean
            same(found[1], orthogonal[:n].sum(0))
    with pytest.raises(ValueError, match="Adasum takes no"):
        hvd.allreduce(torch.ones(3), op=hvd.Adasum, prescale_factor=2.0)


@with_ranks(3)
def test_groups_again_and_again(hvd: Any) -> None:
    """The core remembers a group by its name: other shapes, types, operators and numbers of tensors are noticed."""
    n, r = hvd.size(), hvd.rank()
    rounds = [(hvd.Sum, "float32", [(3,), (2, 5), ()])] * 3 + [
        (hvd.Sum, "float32", [(3,), (5, 2), (0,)]),
        (hvd.Max, "float32", [(3,), (5, 2), (0,)]),
        (hvd.Sum, "int64", [(3,), (5, 2), (0,)]),
        (hvd.Sum, "int64", [(3,), (5, 2)]),
        (hvd.Sum, "float64", [(70, 130), (5, 2), (1,) * 9]),  # the first result in recycled memory, the last deep
        (hvd.Sum, "float64", [(70, 130), (5, 2), (1,) * 9]),
    ]
    kept = []
    for seed, (op, dtype, shapes) in enumerate(rounds):
        mine = [of_rank(r, shape, dtype, seed) for shape in shapes]
        all_of = [all_contributions(n, shape, dtype, seed) for shape in shapes]
        right = [x.sum(0).to(x.dtype) if op == hvd.Sum else x.amax(0) for x in all_of]
        found = hvd.grouped_allreduce(mine, op=op, name="again")
        kept.append((found, right))
        in_place = hvd.grouped_allreduce_(mine, op=op, name="again")
        for x, y, z, expected in zip(mine, found, in_place, right, strict=True):
            same(y, expected)
            assert z is x
            same(x, expected)
    for found, right in kept:  # results are not used again
        for y, expected in zip(found, right, strict=True):
            same(y, expected)
    scaled = hvd.grouped_allreduce([torch.ones(4), torch.ones(2)], op=hvd.Sum, name="again", prescale_factor=0.5)
    same(scaled[1], torch.full((2,), n * 0.5))


@with_ranks(2)
def test_a_group_that_differs(hvd: Any) -> None:
    """Each rank's error names the tensor, and the remembered group works again afterwards."""
    for turn in range(6):
        odd = turn % 2 == 1
        tensors = [torch.ones(4), torch.ones(3 + (odd and hvd.rank())), torch.ones(2)]
        if odd:
            with pytest.raises(RuntimeError, match=r"'allreduce\.unequal\.1'.*shape=\(3,\).*shape=\(4,\)"):
                hvd.grouped_allreduce(tensors, op=hvd.Sum, name="unequal")
        else:
            for x in hvd.grouped_allreduce(tensors, op=hvd.Sum, name="unequal"):
                assert x.eq(hvd.size()).all()
    views = [torch.ones(6)[::2], torch.ones(2)]  # not contiguous: the general path
    for x in hvd.grouped_allreduce(views, op=hvd.Sum, name="unequal"):
        assert x.eq(hvd.size()).all()
    grown = hvd.grouped_allreduce([torch.ones(4, requires_grad=True), torch.ones(4)], op=hvd.Sum, name="unequal")
    assert grown[0].requires_grad and grown[0].eq(hvd.size()).all()
    handle = hvd.allreduce_async(torch.ones(1), name="busy.1")
    with pytest.raises(ValueError, match=r"'allreduce\.busy\.1' is in flight"):
        hvd.grouped_allreduce([torch.ones(2), torch.ones(2)], name="busy")
    hvd.synchronize(handle)


@with_ranks(3)
def test_a_single_tensor_that_only_some_ranks_give_in_its_plain_form(hvd: Any) -> None:
    """The core reads plain tensors by itself; ranks on the general path take part in the same operation."""
    n, r = hvd.size(), hvd.rank()
    for turn in range(9):
        base = torch.arange(12.0) + r
        forms = [base[::2].clone(), base[::2], base[::2].clone().requires_grad_()]
        form = forms[(r + turn) % 3]
        expected = (torch.arange(12.0) * n + n * (n - 1) / 2)[::2]
        name = "one" if turn % 2 else None
        same(hvd.allreduce(form, op=hvd.Sum, name=name).detach(), expected)
        if r == turn % n:
            [single] = hvd.grouped_allreduce([form], op=hvd.Sum, name="one")
        else:
            single = hvd.allreduce(form, op=hvd.Sum, name="one")
        same(single.detach(), expected)
        same(hvd.allreduce_(forms[0], op=hvd.Sum, name=name), expected)
        larger = torch.full((7 + turn,), float(r))
        same(hvd.allreduce(larger, op=hvd.Sum, name="one"), torch.full((7 + turn,), n * (n - 1) / 2))
        with pytest.raises(RuntimeError, match=r"'allreduce\.one'.*shape=\(2,\).*shape=\(3,\)"):
            hvd.allreduce(torch.ones(2 + (r == 1)), name="one")


# -- the memory of results is reused when their tensors are freed, and never before ---------------------------------


def test_contiguous_whatever_the_given_tensor() -> None:
    x = torch.arange(24.0)
    shapes = [(), (3,), (300, 70), (1 << 17,), (0, 5)]
    types = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
    for like in [
        *(torch.zeros(shape, dtype=dtype) for shape in shapes for dtype in types),
        x.reshape(4, 6).t(),
        x[::2],
        x[:1].expand(6),
        x.reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        x.as_strided((1, 4, 1), (7, 1, 3)),
        torch._neg_view(x),
        torch.nn.Parameter(x.clone()),
    ]:
        made = tensors.empty_like(like)
        assert (made.shape, made.dtype) == (like.shape, like.dtype)
        assert made.is_contiguous() and not made.is_neg() and not made.requires_grad
        assert made.untyped_storage().nbytes() == like.numel() * like.element_size()
        assert made.data_ptr() % 64 == 0 or made.numel() < 1000
        assert torch.equal(made.copy_(like), like)


def test_reused_only_when_unreferenced() -> None:
    like = torch.empty(1 << 18)
    made = tensors.empty_like(like)
    address, view = made.data_ptr(), made[5:]
    view.fill_(1.0)
    del made
    other = tensors.empty_like(like)
    assert other.data_ptr() != address
    other.fill_(2.0)
    assert (view == 1).all()
    del view
    assert tensors.empty_like(like).data_ptr() == address


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_memory, "MOST_KEPT", result_memory._bytes_kept + (1 << 20))
    held = [tensors.empty_like(torch.empty(1 << 18)) for _ in range(5)]
    del held
    assert result_memory._bytes_kept <= result_memory.MOST_KEPT
