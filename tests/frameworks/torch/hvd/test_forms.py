"""Variants of the operations of pycollective.torch: types, splits, gradients, subsets of the ranks."""

from __future__ import annotations

from typing import Any

import pytest
from c10d import same
from hvd import with_ranks

torch: Any = pytest.importorskip("torch")
from opt import agree, weights  # noqa: E402


@with_ranks(1, 2, 3, 4)
def test_alltoall_with_splits(hvd: Any) -> None:
    n, r = hvd.size(), hvd.rank()
    got, rows = hvd.synchronize(hvd.alltoall_async(torch.full((2 * n, 3), r)))  # a pair, also without splits
    same(got, torch.arange(n).repeat_interleave(2).unsqueeze(1).expand(-1, 3))
    same(rows, torch.full((n,), 2, dtype=torch.int32))
    splits = [(r + 1) * (q + 1) % 3 for q in range(n)]
    counts = [(q + 1) * (r + 1) % 3 for q in range(n)]
    for form in (splits, torch.tensor(splits, dtype=torch.int32), torch.tensor(splits)):
        x = torch.full((sum(splits), 2), float(r), requires_grad=True)
        got, rows = hvd.alltoall(x, splits=form)
        same(rows, torch.tensor(counts, dtype=form.dtype if isinstance(form, torch.Tensor) else torch.int32))
        same(got.detach(), torch.arange(float(n)).repeat_interleave(torch.tensor(counts)).unsqueeze(1).expand(-1, 2))
        (got * (r + 1)).sum().backward()  # returned to its source
        weights = torch.arange(1.0, n + 1).repeat_interleave(torch.tensor(splits))
        same(x.grad, weights.unsqueeze(1).expand(-1, 2))
    for wrong in ([1] * (n + 1), [sum(splits) + 1] + [0] * (n - 1), [-1] * n):
        with pytest.raises(ValueError):
            hvd.alltoall(torch.ones(sum(splits)), splits=wrong)
    same(hvd.alltoall(torch.empty(0, 5)), torch.empty(0, 5))


@with_ranks(2)
def test_conjugated_views_count_by_value(hvd: Any) -> None:
    """The memory of a view has the conjugate of what it shows."""
    x = torch.full((2,), 1 + 2j).conj()
    for form in (
        lambda x: hvd.allreduce(x, op=hvd.Sum),
        lambda x: hvd.grouped_allreduce([x, x], op=hvd.Sum)[1],
        lambda x: hvd.broadcast(x, 0),
        hvd.allgather,
        hvd.alltoall,
        lambda x: hvd.reducescatter(x, op=hvd.Sum),
    ):
        same(form(x), form(x.resolve_conj()))
    for change in (hvd.allreduce_, lambda x: hvd.broadcast_(x, 0), lambda x: hvd.grouped_allreduce_([x])):
        with pytest.raises(ValueError, match="conjugate bit"):
            change(x)
    w = torch.nn.Parameter(torch.tensor([1 + 1j]))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), [("w", w)])
    w.conj().backward(torch.tensor([hvd.rank() + 2j]))
    assert w.grad is not None and w.grad.is_conj()
    optimizer.step()
    same(w.detach(), torch.tensor([1 + 1j]) - torch.tensor([0.5 - 2j]))


@with_ranks(1, 2, 3, 4)
def test_gradients(hvd: Any) -> None:
    """Gradients of the synchronous forms, as Horovod defines them."""
    n, r = hvd.size(), hvd.rank()

    def leaf(*shape: int) -> Any:
        return torch.ones(shape, requires_grad=True)

    for operation, rows, expected in (
        (hvd.allreduce, 3, 1),
        (hvd.reducescatter, n, 1),
        (lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, compression=hvd.Compression.bf16), 3, 2 * n),
        (lambda x: hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum)[1], 3, 2 * n),
        (lambda x: hvd.broadcast(x, 0), 3, r == 0),
        (lambda x: hvd.allgather(hvd.broadcast(2 * x, n - 1)), 2, 2 * (r == n - 1)),
    ):
        a = leaf(rows)
        operation(a).sum().backward()
        same(a.grad, torch.full((rows,), float(expected)))
    a, b = leaf(r + 1), leaf(2, 3)
    first, second = hvd.grouped_allgather([a, b])
    ((first * torch.arange(1.0, len(first) + 1)).sum() + second.sum()).backward()
    start = r * (r + 1) // 2
    same(a.grad, torch.arange(start + 1.0, start + r + 2))
    same(b.grad, torch.ones(2, 3))
    a, b = leaf(2 * n + 1), leaf(n, 2)
    first, second = hvd.grouped_reducescatter([a, b], op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    (first.sum() * (r + 1) + second.sum()).backward()
    owners = torch.cat([torch.full((2 + (q == 0),), 2.0 * n * (q + 1)) for q in range(n)])
    same(a.grad, owners)
    same(b.grad, torch.full((n, 2), 2.0 * n))
    a = leaf(2)  # twice: a graph that continues through the gradient
    (gradient,) = torch.autograd.grad(hvd.allreduce(a * a, op=hvd.Sum).sum(), a, create_graph=True)
    gradient.sum().backward()
    same(a.grad, torch.full((2,), 2.0 * n))


@with_ranks(4, process_sets="dynamic")
def test_parts_of_the_ranks(hvd: Any) -> None:
    """Every operation in a process set of three; the fourth rank continues alone."""
    r = hvd.rank()
    part = hvd.add_process_set([0, 2, 3])
    rest = hvd.add_process_set([1])
    if r == 1:
        same(hvd.allgather(torch.ones(2), process_set=rest), torch.ones(2))
        assert hvd.broadcast_object("alone", 1, process_set=rest) == "alone"
        return
    k = part.rank()
    ranks = torch.tensor([0, 2, 3])
    same(hvd.allgather(torch.tensor([r]), process_set=part), ranks)
    same(hvd.alltoall(torch.full((3,), r), process_set=part), ranks)
    same(hvd.reducescatter(torch.arange(3.0), op=hvd.Sum, process_set=part), torch.tensor([3.0 * k]))
    same(hvd.grouped_allreduce([torch.tensor(r)], op=hvd.Max, process_set=part)[0], torch.tensor(3))
    same(hvd.allreduce(torch.eye(3)[k], op=hvd.Adasum, process_set=part), torch.ones(3))
    assert hvd.broadcast_object(r, 2, process_set=part) == 2
    assert hvd.allgather_object(r, process_set=part) == [0, 2, 3]
    hvd.barrier(process_set=part)
    x = torch.sparse_coo_tensor([[k]], [1.0], (3,))
    same(hvd.sparse_allreduce_async(x, "s", hvd.Sum, process_set=part)().to_dense(), torch.ones(3))
    x = torch.ones(2, requires_grad=True)
    (hvd.allreduce(x, op=hvd.Sum, process_set=part) + hvd.broadcast(x, 3, process_set=part)).sum().backward()
    same(x.grad, torch.full((2,), 3.0 + (r == 3)))
    weights = torch.full((2, 2), float(r))
    hvd.broadcast_parameters([("w", weights)], 2, process_set=part)
    same(weights, torch.full((2, 2), 2.0))
    for root in (1, 4):
        with pytest.raises(ValueError, match=r"root_rank"):
            hvd.broadcast(weights, root, process_set=part)


@with_ranks(1, 2, 3)
def test_further_types(hvd: Any) -> None:
    n, r = hvd.size(), hvd.rank()
    for dtype in (torch.uint16, torch.uint32, torch.uint64):
        x = torch.tensor([r, 40_000]).to(dtype)
        same(hvd.allreduce(x, op=hvd.Max), torch.tensor([n - 1, 40_000]).to(dtype))
        assert hvd.allgather(x).shape == (2 * n,)
    same(hvd.allreduce(torch.tensor([-7, 8]) * (r == 0)), torch.div(torch.tensor([-7, 8]), n, rounding_mode="trunc"))
    negative = torch.tensor(1.0 + 2.0j).conj().imag  # torch has yet to negate what is in memory
    same(hvd.allreduce(negative, op=hvd.Sum), torch.tensor(-2.0 * n))
    with pytest.raises(ValueError, match="negative bit"):
        hvd.broadcast_(negative, 0)
    with pytest.raises(TypeError, match="complex32"):
        hvd.allreduce(torch.ones(2, dtype=torch.complex32))
    with pytest.raises(ValueError, match="op must be"):
        hvd.allreduce(torch.ones(2), op=17)
    for op in (hvd.Adasum, hvd.Max):
        with pytest.raises(RuntimeError, match="takes op=Average and op=Sum"):
            hvd.reducescatter(torch.ones(n), op=op)


@with_ranks(2, 3)
def test_sparse_tensors(hvd: Any) -> None:
    n, r = hvd.size(), hvd.rank()
    x = torch.sparse_coo_tensor([[r, 4, 4]], [1.0, 2.0, 3.0], (6,), check_invariants=False)
    dense = torch.stack([torch.eye(6)[q] + 5 * torch.eye(6)[4] for q in range(n)])
    same(hvd.sparse_allreduce_async(x, "s", hvd.Sum)().to_dense(), dense.sum(0))
    torch.testing.assert_close(hvd.sparse_allreduce_async(x, None, hvd.Average)().to_dense(), dense.mean(0))
    nothing = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), torch.empty(0, 2), (5, 2))
    some = torch.sparse_coo_tensor([[1, 3]], torch.ones(2, 2), (5, 2))
    found = hvd.sparse_allreduce_async(some if r == n - 1 else nothing, None, hvd.Sum)()
    same(found.to_dense(), some.to_dense())
    same(hvd.sparse_allreduce_async(nothing, "n", hvd.Average)().to_dense(), torch.zeros(5, 2))
    with pytest.raises(ValueError, match="op must be Sum or Average"):
        hvd.sparse_allreduce_async(some, "x", hvd.Max)


class Stubborn:
    def __reduce__(self) -> Any:
        raise ArithmeticError("not me")


@with_ranks(2, 3)
def test_what_cannot_be_sent_is_an_error_everywhere(hvd: Any) -> None:
    r = hvd.rank()
    for share in (lambda: hvd.broadcast_object(Stubborn() if r == 1 else None, 1),
                  lambda: hvd.allgather_object(Stubborn() if r == 1 else None)):  # fmt: skip
        with pytest.raises(ArithmeticError if r == 1 else RuntimeError, match="not me" if r == 1 else "of rank 1 "):
            share()
    assert hvd.allgather_object(r) == list(range(hvd.size()))


@with_ranks(1, 2, 3, 4)
def test_states_and_objects(hvd: Any) -> None:
    n, r = hvd.size(), hvd.rank()
    root = n - 1
    torch.manual_seed(r)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)).to(memory_format=torch.channels_last)
    for params in (model.state_dict(), model.named_parameters()):
        hvd.broadcast_parameters(params, root)
    agree(hvd, weights(model))
    rate, betas = torch.tensor(0.1 * (r + 1)), (0.5 + 0.1 * r, 0.9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=betas)
    if r == root:
        model(torch.randn(1, 1, 5, 5)).sum().backward()
        optimizer.step()
        optimizer.state[model[0].weight]["pair"] = (torch.ones(2), 5)
    hvd.broadcast_optimizer_state(optimizer, root, model)  # the third argument is the model, as in Horovod
    hvd.broadcast_optimizer_state(optimizer, root_rank=root, model=model)
    group, state = optimizer.param_groups[0], optimizer.state[model[0].weight]
    assert float(group["lr"]) == pytest.approx(0.1 * n) and group["betas"] == (0.5 + 0.1 * root, 0.9)
    assert torch.equal(state["pair"][0], torch.ones(2)) and state["pair"][1] == 5 and float(state["step"]) == 1.0
    assert len(optimizer.state) == 4
    for each in optimizer.state.values():
        agree(hvd, each["exp_avg"])
    fresh = torch.optim.SGD(model.parameters(), lr=0.1 * (r + 1), momentum=0.5)  # no state anywhere
    fresh.zero_grad()
    sparse = torch.nn.Embedding(4, 2, sparse=True)
    fresh.add_param_group({"params": sparse.parameters()})
    hvd.broadcast_optimizer_state(fresh, root, torch.nn.ModuleList([model, sparse]))
    assert fresh.param_groups[0]["lr"] == 0.1 * n
    # Horovod's scripts find zero gradients afterwards, except sparse ones.
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters()) and sparse.weight.grad is None
    turned = (torch.arange(6.0).view(3, 2) + r).t()
    turned = turned if r else turned.contiguous()  # in another order in memory than on other ranks
    waves = torch.full((2,), complex(r, -r))
    hvd.broadcast_parameters({"turned": turned, "none": None, "waves": waves}, root)
    same(turned, (torch.arange(6.0).view(3, 2) + root).t())
    same(waves, torch.full((2,), complex(root, -root)))
    for wrong in ("weights", [("lr", 0.1)], 3):
        with pytest.raises(ValueError, match="params must be"):
            hvd.broadcast_parameters(wrong, 0)
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), 0)
    assert hvd.broadcast_object({"rank": r, "of": [1, None]}, root) == {"rank": root, "of": [1, None]}
    assert hvd.allgather_object("x" * r) == ["x" * q for q in range(n)]
