"""SyncBatchNorm over all ranks equals nn.BatchNorm over the joined batch: forward, backward, running statistics."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hvd import with_ranks  # noqa: E402

C = 5
PLAIN = {0: torch.nn.BatchNorm1d, 1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm2d, 3: torch.nn.BatchNorm3d}


def parts(counts: list[int], axes: int, dtype: Any, seed: int = 0) -> list[Any]:
    """For each rank an input of shape (its count, C, ...) with means far from 0."""
    random = torch.Generator().manual_seed(seed)
    shape = [(count, C, *range(2, 2 + axes)) for count in counts]
    return [(torch.randn(s, generator=random, dtype=torch.float64) * 3 + 7).to(dtype) for s in shape]


def near(found: Any, expected: Any, tolerance: float) -> None:
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def compare(hvd: Any, counts: list[int], axes: int, dtype: Any = torch.float64, steps: int = 2, **options: Any) -> None:
    """Some steps of training, then one of evaluation, against nn.BatchNorm on the joined batch."""
    r, tolerance = hvd.rank(), 1e-12 if dtype == torch.float64 else 1e-5
    ours, plain = hvd.SyncBatchNorm(C, **options).to(dtype), PLAIN[axes](C, **options).to(dtype)
    for module in (ours, plain):
        if module.affine:
            torch.nn.init.normal_(module.weight, generator=torch.Generator().manual_seed(1))
            torch.nn.init.normal_(module.bias, generator=torch.Generator().manual_seed(2))
    start = sum(counts[:r])
    for step in range(steps + 1):
        ours.train(step < steps)
        plain.train(step < steps)
        batches = parts(counts, axes, dtype, seed=step)
        x, whole = batches[r].requires_grad_(), torch.cat(batches).detach().requires_grad_()
        y, expected = ours(x), plain(whole)
        mine = slice(start, start + counts[r])
        near(y, expected[mine], tolerance)
        pull = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9)).to(dtype)
        y.backward(pull[mine])
        expected.backward(pull)
        near(x.grad, whole.grad[mine], tolerance)
        for name, p in plain.named_parameters():
            of_rank = getattr(ours, name)
            near(hvd.allreduce(of_rank.grad, op=hvd.Sum), p.grad, tolerance * 100)
            of_rank.grad = p.grad = None
        for name, value in plain.named_buffers():
            near(getattr(ours, name), value, tolerance)


@with_ranks(1, 2, 3, 4)
def test_as_one_batch(hvd: Any) -> None:
    counts = [4] * hvd.size()
    for axes in range(4):
        compare(hvd, counts, axes)
        compare(hvd, counts, axes, torch.float32)
    options = [{"momentum": None}, {"momentum": 0.5, "eps": 0.1}, {"affine": False}, {"track_running_stats": False}]
    for chosen in options:
        compare(hvd, counts, 2, steps=3, **chosen)


@with_ranks(2, 3, 4)
def test_uneven_batches(hvd: Any) -> None:
    n = hvd.size()
    for counts in ([rank + 1 for rank in range(n)], [0] + [3] * (n - 1), [0] * (n - 1) + [2], [1] * n):
        for axes in (0, 2):
            compare(hvd, counts, axes)


@with_ranks(2, 3, 4)
def test_bfloat16(hvd: Any) -> None:
    """Computed in float32, for any input precision; parameters may be of either type."""
    r, n = hvd.rank(), hvd.size()
    for kind in (torch.bfloat16, torch.float32):
        ours, plain = hvd.SyncBatchNorm(C).to(kind), torch.nn.BatchNorm2d(C)
        batches = [x + 60 for x in parts([4] * n, 2, torch.bfloat16)]  # where steps are of 1/4 and of 1/2
        x, whole = batches[r].requires_grad_(), torch.cat(batches).detach().float().requires_grad_()
        y, expected = ours(x), plain(whole)
        assert y.dtype == torch.bfloat16
        near(y.float(), expected[4 * r : 4 * r + 4], 2e-2)
        (y.float() ** 3).sum().backward()
        (expected**3).sum().backward()
        assert x.grad.dtype == torch.bfloat16
        scale = float(whole.grad.abs().max())
        near(x.grad.float() / scale, whole.grad[4 * r : 4 * r + 4] / scale, 3e-2)
        assert ours.weight.grad.dtype == ours.bias.grad.dtype == kind
        near(ours.running_mean.float(), plain.running_mean, 1e-2 if kind == torch.bfloat16 else 1e-5)


@with_ranks(1, 2, 3, 4)
def test_what_is_frozen_gets_no_gradient(hvd: Any) -> None:
    """And the others get the same: of the input, the weight and the bias."""
    torch.manual_seed(0)
    weight, bias = (torch.randn(C, dtype=torch.float64, requires_grad=True) for _ in range(2))
    x = parts([3] * hvd.size(), 0, torch.float64)[hvd.rank()].requires_grad_()
    whole: list[Any] = []
    for frozen in (None, x, weight, bias):
        given = [t.detach() if t is frozen else t for t in (x, weight, bias)]
        module = hvd.SyncBatchNorm(C).double()
        y = torch.func.functional_call(module, {"weight": given[1], "bias": given[2]}, (given[0],))
        found = torch.autograd.grad((y**3).sum(), [t for t in given if t.requires_grad])
        whole = whole or list(found)
        expected = [gradient for gradient, t in zip(whole, given, strict=True) if t.requires_grad]
        torch.testing.assert_close(list(found), expected)


@with_ranks(2, 3)
def test_trains_as_one_process(hvd: Any) -> None:
    """Two layers of it in a channels-last network under DistributedOptimizer."""
    n, r = hvd.size(), hvd.rank()

    def network(kind: Any) -> Any:
        torch.manual_seed(0)
        layers = [torch.nn.Conv2d(2, 4, 3), kind(4), torch.nn.ReLU(), torch.nn.Conv2d(4, 3, 3), kind(3)]
        return torch.nn.Sequential(*layers).double().to(memory_format=torch.channels_last)

    ours, plain = network(hvd.SyncBatchNorm), network(torch.nn.BatchNorm2d)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.1), ours.named_parameters())
    other = torch.optim.SGD(plain.parameters(), lr=0.1)
    for step in range(4):
        x = torch.randn(4 * n, 2, 7, 7, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        optimizer.zero_grad()
        other.zero_grad()
        (ours(x[4 * r : 4 * r + 4]) ** 3).mean().backward()
        (plain(x) ** 3).mean().backward()
        optimizer.step()
        other.step()
    for name, value in plain.state_dict().items():
        near(ours.state_dict()[name], value, 1e-11)


@with_ranks(2)
def test_refusals(hvd: Any) -> None:
    module = hvd.SyncBatchNorm(C)
    assert isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
    with pytest.raises(ValueError, match="dimensions"):
        module(torch.zeros(C))
    with pytest.raises(ValueError, match="channels"):
        module(torch.zeros(4, C + 1))
    for rows in ([0, 0], [1, 0]):  # as in nn.BatchNorm there is no variance
        with pytest.raises(ValueError, match="value per channel"):
            module(torch.zeros(rows[hvd.rank()], C))
    assert module.num_batches_tracked == 0 and not module.running_mean.any()
    module.eval()
    if hvd.rank() == 0:
        module(torch.ones(2, C))  # no other rank is needed
