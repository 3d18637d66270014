"""GossipOptimizer against a plain reference with matrices."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")
from hvd import run, with_ranks  # noqa: E402
from opt import data, loss_of, small, weights  # noqa: E402

from pycollective import graphs  # noqa: E402
from pycollective.optim import consensus_distance  # noqa: E402

ORDERS = ["combine_then_adapt", "adapt_then_combine"]
FORMS = [{"order": order, "average_every": every} for order in ORDERS for every in (None, 2)]


def gradient(rank: int, step: int) -> Any:
    return np.random.default_rng((rank, step)).normal(size=7)


def reference(n: int, steps: int, order: str, average_every: int | None = None) -> Any:
    """Momentum SGD with decay, as torch has it."""
    x = np.arange(n)[:, None] + np.zeros(7)
    v = np.zeros_like(x)
    for t in range(steps):
        exact = average_every and (t + 1) % average_every == 0
        matrix = graphs.complete.matrix(n) if exact else graphs.ring.matrix(n, t)
        if order == "combine_then_adapt":
            x = matrix @ x
        v = 0.9 * v + np.stack([gradient(r, t) for r in range(n)]) + 0.1 * x
        x = x - 0.05 * v
        if order == "adapt_then_combine":
            x = matrix @ x
    return x


def steps(hvd: Any, closure: bool = False, **options: Any) -> Any:
    parts = [torch.nn.Parameter(torch.full((k,), float(hvd.rank()), dtype=torch.float64)) for k in (3, 4)]
    sgd = torch.optim.SGD(parts, lr=0.05, momentum=0.9, weight_decay=0.1)
    optimizer = hvd.GossipOptimizer(sgd, [("a", parts[0]), ("b", parts[1])], graphs.ring, **options)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
    for t in range(5):
        optimizer.zero_grad()

        def loss(t: int = t) -> Any:
            found = (torch.cat(parts) * torch.tensor(gradient(hvd.rank(), t))).sum()
            found.backward()
            return found.detach()

        if closure:
            assert isinstance(optimizer.step(loss), torch.Tensor)
        else:
            loss()
            assert bool(optimizer._in_progress) == (options["order"] == "combine_then_adapt")  # it overlaps backward
            optimizer.step()
        schedule.step()
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.gossip_steps == 5
    own = torch.cat(parts).detach().numpy().copy()
    optimizer.average_parameters()
    return own, torch.cat(parts).detach().numpy(), consensus_distance(None, parts)


@pytest.mark.parametrize("n", [1, 4])
def test_steps_are_those_of_the_formula(n: int) -> None:
    found = run(n, _all_forms)
    for i, form in enumerate(FORMS):
        expected = reference(n, 5, **form)
        for rank in range(n):
            own, mean, distance = found[rank][i]
            np.testing.assert_allclose(own, expected[rank], rtol=1e-12, atol=1e-13)
            np.testing.assert_allclose(mean, expected.mean(0), rtol=1e-12, atol=1e-13)
            assert distance == 0
            np.testing.assert_array_equal(found[rank][-1][0], found[rank][0][0])  # with a closure


def _all_forms(hvd: Any) -> Any:
    return [*(steps(hvd, **form) for form in FORMS), steps(hvd, closure=True, order=ORDERS[0])]


def test_a_network_learns_and_ends_with_the_same_weights_on_all_ranks() -> None:
    first, second = run(3, _train), run(3, _train)
    for before, after, found in first:
        assert after < 0.7 * before
        np.testing.assert_array_equal(found, first[0][2])
    np.testing.assert_array_equal(first[0][2], second[0][2])  # run after run


def _train(hvd: Any) -> Any:
    model = small(torch.float32)
    model[0].weight.requires_grad_(False)  # frozen: not mixed
    frozen = model[0].weight.clone()
    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    optimizer = hvd.GossipOptimizer(adam, model.named_parameters(), graphs.random_pairs(1))
    losses = []
    for _ in range(30):
        images, targets = data(hvd.size(), 0, torch.float32)
        loss = loss_of(model, images[0, hvd.rank()], targets[0, hvd.rank()])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    optimizer.average_parameters()
    assert torch.equal(model[0].weight, frozen)
    return losses[0], losses[-1], weights(model).numpy()


def test_ranks_outside_the_process_set_step_alone() -> None:
    found = run(3, _in_a_set, process_sets="dynamic")
    assert found == [(0.75, 0.75, 0), (0.75, 0.75, None), (0.75, 0.75, 0)]  # the mean of 0 and 2, and 1, less 1/4


def _in_a_set(hvd: Any) -> Any:
    pair = hvd.add_process_set([0, 2])
    found = []
    for order in ORDERS:
        p = torch.nn.Parameter(torch.tensor([float(hvd.rank())]))
        sgd = torch.optim.SGD([p], lr=0.25)
        optimizer = hvd.GossipOptimizer(sgd, [("p", p)], graphs.ring, order=order, process_set=pair)
        p.sum().backward()
        optimizer.step()
        found.append(p.item())
        optimizer.average_parameters()
        assert p.item() == found[-1]
    found.append(consensus_distance(optimizer._mixing.comm, [p]) if pair.included() else None)
    hvd.remove_process_set(pair)
    with pytest.raises(ValueError, match="not registered"):
        hvd.GossipOptimizer(sgd, [("p", p)], graphs.ring, process_set=pair)
    return tuple(found)


@with_ranks(2)
def test_wrong_use_is_refused(hvd: Any) -> None:
    model = torch.nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    named = list(model.named_parameters())

    def lopsided(rank: int, size: int, step: int) -> dict[int, float]:
        return {0: 1.0} if rank == 0 else {0: 0.5, rank: 0.5}

    with pytest.raises(ValueError, match=r"column 0 of the graph sums to 1\.5"):
        hvd.GossipOptimizer(sgd, named, lopsided)
    with pytest.raises(TypeError, match="graph must be a function"):
        hvd.GossipOptimizer(sgd, named, {0: 1.0})
    with pytest.raises(ValueError, match="order must be one of"):
        hvd.GossipOptimizer(sgd, named, graphs.ring, order="first")
    with pytest.raises(ValueError, match="not in named_parameters"):
        hvd.GossipOptimizer(sgd, named[:1], graphs.ring)
    optimizer = hvd.GossipOptimizer(sgd, named, graphs.ring)
    with pytest.raises(ValueError, match="distributed already"):
        hvd.GossipOptimizer(optimizer, named, graphs.ring)
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(optimizer, named)
    assert type(copy.deepcopy(optimizer)) is torch.optim.SGD
    model(torch.ones(1, 2)).sum().backward()
    with torch.no_grad():
        named[0][1].add_(1)
    with pytest.raises(RuntimeError, match="weight was changed between backward"):
        optimizer.step()
    optimizer.step()  # mixes the changed parameters
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    with pytest.raises(RuntimeError, match="use bfloat16"):
        scaler.step(optimizer)
    model.bias.requires_grad_(False)
    with pytest.raises(RuntimeError, match="frozen, unfrozen or added"):
        optimizer.step()
