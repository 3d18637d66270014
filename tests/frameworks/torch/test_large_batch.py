"""Torch's front end of the rules for large batches, which matches arrays and one process; GhostBatchNorm, samplers."""

from __future__ import annotations

import copy
import io
import math
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")
import c10d  # noqa: E402
import c10d_training  # noqa: E402
from hvd import with_ranks  # noqa: E402
from opt import agree, alone, close, data, everybodys, loss_of, mine, small, together, weights  # noqa: E402

import pycollective as pc  # noqa: E402
from pycollective.optim import DistributedOptimizer, NoiseScale, sample_rows  # noqa: E402
from pycollective.optim.schedules import GrowingBatch  # noqa: E402
from pycollective.torch.ghost_batch_norm import GhostBatchNorm1d, GhostBatchNorm2d  # noqa: E402
from pycollective.torch.optimizers import LAMB, LARC, LARS, NovoGrad, RuleOptimizer  # noqa: E402
from pycollective.torch.samplers import GrowingBatchSampler, IndependentSampler  # noqa: E402

OPTIONS: dict[Any, dict[str, Any]] = {
    LARS: {"lr": 1.5, "weight_decay": 0.1, "trust_coefficient": 0.05},
    LARC: {"lr": 0.1, "weight_decay": 0.1},
    LAMB: {"lr": 0.02, "weight_decay": 0.1},
    NovoGrad: {"lr": 0.02, "weight_decay": 0.1},
}
EACH = pytest.mark.parametrize("kind", OPTIONS)
SHAPES = [(5, 3), (3,), (), (0, 4)]


def tensors(seed: int, dtype: Any = torch.float64) -> list[Any]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in SHAPES]


def make(kind: Any, model: Any) -> Any:
    """Biases and the parameters of norms in a separate group, without decay."""
    layers = [p for p in model.parameters() if p.dim() > 1]
    plain = {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0, "lr": 0.01}
    return kind([{"params": layers}, plain if kind is NovoGrad else {**plain, "adapt": False}], **OPTIONS[kind])


def take(optimizer: Any, parameters: list[Any], steps: range) -> None:
    for t in steps:
        for p, g in zip(parameters, tensors(100 + t), strict=True):
            p.grad = g.to(p.dtype)
        optimizer.step()


@EACH
def test_as_on_arrays(kind: Any) -> None:
    parameters = [torch.nn.Parameter(x) for x in tensors(0)]
    take(kind(parameters, **OPTIONS[kind]), parameters, range(4))

    def body(comm: Any) -> Any:
        arrays = [x.numpy() for x in tensors(0)]
        optimizer = DistributedOptimizer(arrays, kind.rule, comm=comm, **OPTIONS[kind])
        for t in range(4):
            optimizer.step([g.numpy() for g in tensors(100 + t)])
        return arrays

    (arrays,) = pc.local_world(1).run(body)
    for p, x, start in zip(parameters, arrays, tensors(0), strict=True):
        np.testing.assert_allclose(p.detach().numpy(), x, rtol=1e-12)
        assert not p.numel() or not torch.equal(p, start)


def test_without_adaptation_lamb_is_adamw() -> None:
    found, expected = ([torch.nn.Parameter(x) for x in tensors(0)] for _ in range(2))
    take(LAMB(found, lr=0.1, weight_decay=0.1, adapt=False, eps=1e-8), found, range(4))
    take(torch.optim.AdamW(expected, lr=0.1, weight_decay=0.1), expected, range(4))
    for p, x in zip(found, expected, strict=True):
        torch.testing.assert_close(p, x, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@EACH
def test_resuming_changes_no_bits(kind: Any, dtype: Any) -> None:
    parameters = [torch.nn.Parameter(x) for x in tensors(0, dtype)]
    optimizer = kind(parameters, **OPTIONS[kind])
    take(optimizer, parameters, range(2))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    copies = [torch.nn.Parameter(p.detach().clone()) for p in parameters]
    again = kind(copies, lr=7.0)
    again.load_state_dict(torch.load(file))
    whole, pickled = copy.deepcopy((parameters, optimizer)), pickle.loads(pickle.dumps((parameters, optimizer)))
    for used, those in ((optimizer, parameters), (again, copies), whole[::-1], pickled[::-1]):
        take(used, those, range(2, 4))
        assert all(torch.equal(p, x) for p, x in zip(parameters, those, strict=True))
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        assert all(x.dtype == wide for own in used.state.values() for x in own.values() if isinstance(x, torch.Tensor))


def test_what_a_step_takes_and_refuses() -> None:
    a, b = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    sparse = torch.nn.Embedding(3, 2, sparse=True)
    optimizer = LARS([{"params": [a]}, {"params": [b], "lr": 0.0}, {"params": sparse.parameters()}], lr=0.5)
    assert optimizer.step() is None and not optimizer.state  # no parameter has a gradient

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (a * torch.tensor([3.0, 4.0])).sum() + b.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 9
    torch.testing.assert_close(a.detach(), 1 - 0.5 * 0.001 * math.sqrt(2) / 5 * torch.tensor([3.0, 4.0]))
    assert b.tolist() == [1, 1] and sparse.weight not in optimizer.state
    before = a.detach().clone()
    sparse(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="LARS takes no sparse gradients"):
        optimizer.step()
    assert torch.equal(a, before)


@pytest.mark.parametrize(
    ("options", "group", "error", "message"),
    [
        ({}, {}, TypeError, "lamb needs lr"),
        ({"lr": -1}, {}, ValueError, "lr must be a number, at least 0"),
        ({"lr": 1, "momentum": 0.9}, {}, TypeError, "lamb has no option momentum"),
        ({"lr": 1}, {"betas": (1, 1)}, ValueError, "betas"),
        ({"lr": 1}, {"params": [torch.zeros(1, dtype=torch.complex64)]}, TypeError, "real floating-point"),
    ],
)
def test_refusals(options: Any, group: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        LAMB([{"params": [torch.zeros(1)], **group}], **options)
    optimizer = LAMB([torch.zeros(1)], lr=1)
    if group:
        with pytest.raises(error, match=message):
            optimizer.add_param_group({"params": [torch.zeros(1)], **group})
        assert len(optimizer.param_groups) == 1


class Signs(RuleOptimizer):
    """A user-defined rule."""

    @staticmethod
    def rule(p: Any, g: Any, state: dict[str, Any], *, lr: float) -> Any:  # type: ignore[override]
        return p - lr * g.sign()


@with_ranks(2)
def test_several_ranks_train_as_one(hvd: Any) -> None:
    for kind in OPTIONS:
        expected = alone(lambda model, kind=kind: make(kind, model), 2)
        found = together(hvd, lambda model, kind=kind: make(kind, model))
        agree(hvd, found)
        close(found, expected)
        _late(hvd, kind, expected)
    expected = alone(lambda model: Signs(model.parameters(), lr=0.1), 2)
    close(together(hvd, lambda model: Signs(model.parameters(), lr=0.1)), expected)
    _noise(hvd)


def _late(hvd: Any, kind: Any, expected: Any) -> None:
    """Rank 0 has begun alone, on all data; the others continue with it."""
    model = small()
    optimizer = make(kind, model)
    for step in range(4):
        if step == 2:
            hvd.broadcast_parameters(model.state_dict(), 0)
            hvd.broadcast_optimizer_state(optimizer, 0)
            optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        if step < 2 and hvd.rank() > 0:
            continue
        optimizer.zero_grad()
        loss_of(model, *(everybodys if step < 2 else mine)(hvd, step)).backward()
        optimizer.step()
    close(weights(model), expected)
    assert not torch.equal(expected, weights(small())), "nothing is learned"


def _noise(hvd: Any) -> None:
    """Hooks see this rank's gradients, p.grad is the average."""
    model = small()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    squares: list[Any] = []
    for p in model.parameters():
        p.register_hook(lambda g: squares.append(g.square().sum()))
    scale = NoiseScale(rows=4)
    loss_of(model, *mine(hvd, 0)).backward()
    optimizer.synchronize()
    averaged = [p.grad for p in model.parameters()]
    small_one = hvd.allreduce(torch.stack(squares).sum()).item()
    large = sum(float(g.square().sum()) for g in averaged)
    scale.update(float(sum(squares)), averaged)
    assert scale.signal == pytest.approx((8 * large - 4 * small_one) / 4)
    assert scale.noise == pytest.approx((small_one - large) * 8)
    optimizer.zero_grad()


@c10d.on_ranks(2)
def test_under_torch_distributed(world: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for kind in OPTIONS:
        expected = alone(lambda model, kind=kind: make(kind, model), 2)
        for model in (torch.nn.parallel.DistributedDataParallel(small()), fully_shard(small())):
            optimizer = make(kind, model)
            for step in range(4):
                images, targets = data(2, step)
                optimizer.zero_grad()
                loss_of(model, images[0, world.rank], targets[0, world.rank]).backward()
                optimizer.step()
            close(c10d_training.flat(model), expected)  # for shards, the norms are those of complete parameters


# -- GhostBatchNorm ----------------------------------------------------------------------------------------


def ghost(*shape: int, **options: Any) -> tuple[Any, Any, Any]:
    """An input, a GhostBatchNorm and torch's own with the same parameters."""
    ghosts, plain = (
        (GhostBatchNorm1d, torch.nn.BatchNorm1d) if len(shape) < 4 else (GhostBatchNorm2d, torch.nn.BatchNorm2d)
    )
    torch.manual_seed(0)
    size = options.pop("ghost_size")
    ours, theirs = ghosts(shape[1], size, **options).double(), plain(shape[1], **options).double()
    if ours.affine:
        torch.nn.init.normal_(ours.weight)
    theirs.load_state_dict(ours.state_dict())
    return torch.randn(shape, dtype=torch.float64) * 3 + 5, ours, theirs


@pytest.mark.parametrize("shape", [(12, 3), (12, 3, 5), (12, 3, 2, 4)])
@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}])
def test_each_ghost_batch_has_its_own_statistics(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    x, ours, theirs = ghost(*shape, ghost_size=4, **options)
    for _ in range(2):
        found = ours(x)
        for k in range(3):
            part = x[4 * k : 4 * k + 4]
            torch.testing.assert_close(found[4 * k : 4 * k + 4], theirs(part), rtol=1e-12, atol=1e-12)
            spread = [0, *range(2, x.dim())]
            if not ours.affine:
                variance, mean = torch.var_mean(part, spread, correction=0, keepdim=True)
                expected = (part - mean) / (variance + 1e-5).sqrt()
                torch.testing.assert_close(found[4 * k : 4 * k + 4], expected, rtol=1e-12, atol=1e-12)
        x = x * 2
    for (name, value), other in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(value, other, msg=name)
    assert torch.equal(ours.eval()(x), theirs.eval()(x))


def test_batches_that_the_size_does_not_divide() -> None:
    for rows, parts in ((3, [3]), (4, [4]), (7, [7]), (8, [4, 4]), (11, [6, 5]), (14, [5, 5, 4])):
        x, ours, theirs = ghost(rows, 2, ghost_size=4)
        expected = torch.cat([theirs(part) for part in x.split(parts)])
        assert torch.equal(ours(x.requires_grad_()), expected) and ours.num_batches_tracked == len(parts)
    (slope,) = torch.autograd.grad(ours(x).pow(3).sum(), x)
    (wanted,) = torch.autograd.grad(sum(theirs(part).pow(3).sum() for part in x.split(parts)), x)
    torch.testing.assert_close(slope, wanted)
    with pytest.raises(ValueError, match="more than 1 value"):
        GhostBatchNorm1d(2, 1)(torch.ones(3, 2))
    with pytest.raises(ValueError, match="ghost_size must be an integer of at least 1"):
        GhostBatchNorm1d(2, 0)
    with pytest.raises(ValueError, match="4D"):
        GhostBatchNorm2d(2, 1)(torch.ones(3, 2))
    assert "ghost_size=8" in repr(GhostBatchNorm2d(2, 8))


# -- samplers: the whole data set on every rank, and batches that grow --------------------------------------

DATA = torch.utils.data.TensorDataset(torch.arange(100))


def loader(**options: Any) -> Any:
    return torch.utils.data.DataLoader(DATA, **options)


def test_indices_are_those_of_sample_rows_and_change_with_the_epoch() -> None:
    sampler = IndependentSampler(DATA, num_replicas=4, rank=3, seed=5)
    assert len(sampler) == 25
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        read = torch.cat([batch for (batch,) in loader(sampler=sampler, batch_size=7)]).tolist()
        assert read == sample_rows(100, SimpleNamespace(rank=3, size=4), seed=5, epoch=epoch).tolist()


def test_every_rank_has_the_same_number_of_batches() -> None:
    lengths = {len(loader(sampler=IndependentSampler(DATA, num_replicas=3, rank=r), batch_size=8)) for r in range(3)}
    assert lengths == {5}
    assert len(list(IndependentSampler(DATA, 3, 0, count=80))) == 80


def test_wrong_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="rank must be an integer from 0 to 2, not 3"):
        IndependentSampler(DATA, 3, 3)
    with pytest.raises(ValueError, match="count must be an integer from 0 to 100, not 101"):
        IndependentSampler(DATA, 3, 0, count=101)


def test_a_loaders_batches_grow_and_follow_the_epochs_of_the_sampler() -> None:
    sampler = IndependentSampler(DATA, num_replicas=4, rank=1)
    growing = GrowingBatch(8, [3, 5], growth=4, limit=100)
    batches = GrowingBatchSampler(sampler, growing, steps=7, num_replicas=4)
    read = [batch.tolist() for (batch,) in loader(batch_sampler=batches)]
    assert [len(batch) for batch in read] == [2, 2, 2, 8, 8, 25, 25] and len(batches) == 7
    expected = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        expected += list(sampler)
    assert [index for batch in read for index in batch] == expected[: sum(map(len, read))]
    again = GrowingBatchSampler(sampler, growing, steps=7, first=5, num_replicas=4)
    assert [batch.tolist() for (batch,) in loader(batch_sampler=again)] == read[5:]


def test_torchs_own_sampler_can_be_grown() -> None:
    sampler = torch.utils.data.DistributedSampler(DATA, num_replicas=4, rank=1, drop_last=True)
    batches = GrowingBatchSampler(sampler, GrowingBatch(40, []), steps=6, num_replicas=4)
    read = [index for (batch,) in loader(batch_sampler=batches) for index in batch.tolist()]
    sampler.set_epoch(1)
    assert len(read) == 60 and read[25:50] == list(sampler)
