"""Between two steps of a DistributedOptimizer: passes, clipping, closures, missing and sparse gradients."""

from __future__ import annotations

import copy
import itertools
import warnings
from functools import partial
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hvd import with_ranks  # noqa: E402
from opt import Twins, agree, close, data, decaying, everybodys, loss_of, mine, small, weights  # noqa: E402


def wrap(hvd: Any, model: Any) -> Any:
    return hvd.DistributedOptimizer(decaying(model), named_parameters=model.named_parameters())


# -- synchronize() and step() --------------------------------------------------------------------------------------


@with_ranks(1, 2, 3, 4)
def test_clipping(hvd: Any) -> None:
    twins = Twins(hvd)
    for step in range(4):
        twins.zero_grad(set_to_none=step % 2 == 1)
        twins.backward(step)
        twins.optimizer.synchronize()
        norm, expected = (torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1) for m in (twins.model, twins.alone))
        assert norm > 0.1
        close(norm, expected)
        with warnings.catch_warnings(), twins.optimizer.skip_synchronize():
            warnings.simplefilter("error")
            twins.step()


@with_ranks(1, 3)
def test_step_after_synchronize_warns(hvd: Any) -> None:
    model = small()
    optimizer = wrap(hvd, model)
    for _ in range(2):
        loss_of(model, *mine(hvd, 0)).backward()
        optimizer.synchronize()
        with pytest.warns(UserWarning, match=r"optimizer\.step\(\) called without optimizer\.skip_synchronize\(\)"):
            optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            optimizer.zero_grad()
            loss_of(model, *mine(hvd, 0)).backward()
            optimizer.step()
        optimizer.zero_grad()
    agree(hvd, weights(model))


@with_ranks(2)
def test_steps_out_of_order(hvd: Any) -> None:
    model = small()
    optimizer = wrap(hvd, model)
    loss_of(model, *mine(hvd, 0)).backward()
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="synchronize"), optimizer.skip_synchronize():
        optimizer.step()
    optimizer.step()
    optimizer.zero_grad()
    for step in (1, 2):
        loss_of(model, *mine(hvd, step)).backward()
        if step == 1:
            with pytest.raises(AssertionError, match="backward_passes_per_step"):
                loss_of(model, *mine(hvd, step)).backward()
            optimizer.synchronize()
            optimizer.zero_grad()  # the gradients are undefined
    optimizer.step()
    agree(hvd, weights(model))


@with_ranks(2)
def test_gradients_changed_while_they_are_reduced(hvd: Any) -> None:
    model = small()
    optimizer = wrap(hvd, model)
    for _ in range(5):  # gradients that are kept are soon in windows
        loss_of(model, *mine(hvd, 0)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with pytest.raises(RuntimeError, match=r"weight was changed while it was being reduced: call synchronize\(\)"):
            optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, *mine(hvd, 0)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    assert optimizer._windows._views[model[0].weight] is model[0].weight.grad
    agree(hvd, weights(model))


@with_ranks(2, 3)
def test_step_before_all_passes_are_done(hvd: Any) -> None:
    for groups in (None, 3):
        twins = Twins(hvd, backward_passes_per_step=3, groups=groups)
        for step, passes in enumerate((2, 3, 1, 2)):
            if step == 3:
                twins.optimizer.set_backward_passes_per_step(2)
            twins.zero_grad()
            for _ in range(passes):
                twins.backward(step)
            twins.step()


@with_ranks(2, 3)
def test_gradients_that_are_not_zeroed_accumulate(hvd: Any) -> None:
    """Without zero_grad the next gradient is added to the reduced one, which all ranks have."""
    twins = Twins(hvd)
    for step in range(3):
        twins.backward(step)
        twins.step()


@with_ranks(1, 2)
def test_scaled_gradients(hvd: Any) -> None:
    """`by_hand`: as Horovod requires; otherwise only GradScaler.step."""
    for by_hand, fused in itertools.product((True, False), repeat=2):
        model, alone = small(), small()
        inner, other = decaying(model, fused=fused), decaying(alone)
        optimizer = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
        for step in range(4):
            optimizer.zero_grad(set_to_none=step == 1)
            x, y = mine(hvd, step)
            broken = step == 2 and hvd.rank() == hvd.size() - 1  # an overflow on one rank skips the step on all
            scaler.scale(loss_of(model, x * torch.inf if broken else x, y)).backward()
            if by_hand:
                optimizer.synchronize()
                scaler.unscale_(optimizer)
                with optimizer.skip_synchronize():
                    scaler.step(optimizer)
            else:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    scaler.step(optimizer)
            scaler.update()
            if step != 2:
                other.zero_grad()
                loss_of(alone, *everybodys(hvd, step)).backward()
                other.step()
        assert scaler.get_scale() == 512.0
        close(weights(model), weights(alone))


# -- closures ------------------------------------------------------------------------------------------------------


@with_ranks(1, 2, 3, 4)
def test_closures(hvd: Any) -> None:
    kinds: list[Any] = [
        lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=6),
        lambda p: torch.optim.LBFGS(p, max_iter=5, line_search_fn="strong_wolfe"),  # decides by the loss
        lambda p: torch.optim.SGD(p, lr=0.05),
    ]
    for kind in kinds:
        twins = Twins(hvd, lambda model, kind=kind: kind(model.parameters()))
        for step in range(3):
            part = partial(evaluate, twins.model, twins.optimizer, mine(hvd, step))
            whole = partial(evaluate, twins.alone, twins.other, everybodys(hvd, step))
            found, expected = twins.optimizer.step(part), twins.other.step(whole)
            close(found.detach(), expected.detach(), 1e-9)
        agree(hvd, weights(twins.model))
        close(weights(twins.model), weights(twins.alone), 1e-9)  # the search amplifies rounding errors
        assert isinstance(twins.optimizer.step(lambda part=part: part().item()), float)


def evaluate(model: Any, optimizer: Any, batch: Any) -> Any:
    optimizer.zero_grad()
    loss = loss_of(model, *batch)
    loss.backward()
    return loss


# -- gradients that are missing ------------------------------------------------------------------------------------


class Branches(torch.nn.Module):  # type: ignore[misc]
    """Uses the given parts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(4)]).double()

    def forward(self, x: Any, used: Any) -> Any:
        for number in used:
            x = torch.tanh(self.parts[number](x))
        return x


def uses(rank: int, step: int) -> list[int]:
    """Part 0 on all ranks, 1 on rank 0 only, 2 only on rank 0 in step 2, 3 on a rank that changes."""
    return [0] + [1] * (rank == 0) + [2] * (rank == 0 and step == 2) + [3] * (step % 3 == rank)


@with_ranks(1, 2, 3, 4)
def test_parameters_without_a_gradient(hvd: Any) -> None:
    n, r = hvd.size(), hvd.rank()
    for groups, passes, keep in itertools.product((None, 1, 2), (1, 2), (False, True)):
        twins = Twins(hvd, network=Branches, groups=groups, backward_passes_per_step=passes)
        for step in range(5):
            x = torch.ones(2, 3, dtype=torch.float64)
            twins.zero_grad(set_to_none=not keep)
            for _ in range(passes):
                twins.model(x * (r + 1), uses(r, step)).sum().backward()
                for rank in range(n):
                    (twins.alone(x * (rank + 1), uses(rank, step)).sum() / n).backward()
            twins.step()
            for p, q in zip(twins.model.parameters(), twins.alone.parameters(), strict=True):
                assert (p.grad is None) == (q.grad is None)


@with_ranks(1, 2, 3)
def test_frozen_and_added_parameters(hvd: Any) -> None:
    def network() -> Any:
        made = small()
        made[0].requires_grad_(False)
        return made

    twins = Twins(hvd, network=network)
    head = torch.nn.Linear(3, 3).double()
    hvd.broadcast_parameters(head.state_dict(), 0)
    other_head = copy.deepcopy(head)
    for step in range(8):
        for model, last, optimizer, batch in (
            (twins.model, head, twins.optimizer, mine(hvd, step)),
            (twins.alone, other_head, twins.other, everybodys(hvd, step)),
        ):
            if step == 2:  # unfrozen later, as in fine-tuning
                model[0].requires_grad_(True)
            if step == 6:
                model[4].requires_grad_(False)
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            if step == 4:
                optimizer.add_param_group({"params": last.parameters(), "lr": 0.2})
            loss_of(torch.nn.Sequential(model, last), *batch).backward()
            if step < 4:  # not the optimizer's yet
                last.zero_grad()
        twins.step()
        close(weights(head), weights(other_head))


@with_ranks(2, 4)
def test_turns(hvd: Any) -> None:
    """Generator and discriminator, trained in turns: Horovod's test_dynamic_requires_grad."""
    makes, judges = torch.nn.Conv2d(1, 10, 1), torch.nn.Conv2d(10, 1, 1)
    hvd.broadcast_parameters(makes.state_dict(), 0)
    hvd.broadcast_parameters(judges.state_dict(), 0)
    optimizers = [wrap(hvd, makes), wrap(hvd, judges)]  # both name their parameters weight and bias
    x = torch.full((1, 1, 8, 8), float(hvd.rank() + 1))
    for turn in (0, 1, 1, 0):
        for number, (model, optimizer) in enumerate(zip((makes, judges), optimizers, strict=True)):
            model.requires_grad_(number == turn)
            optimizer.zero_grad()
        judges(makes(x)).sum().backward()
        before = [weights(makes), weights(judges)]
        for optimizer in optimizers:
            optimizer.step()
        moved = [not torch.equal(a, weights(model)) for a, model in zip(before, (makes, judges), strict=True)]
        assert moved == [turn == 0, turn == 1]
        agree(hvd, weights(makes))
        agree(hvd, weights(judges))


@with_ranks(1, 2, 3, 4)
def test_ranks_that_run_out_of_data(hvd: Any) -> None:
    """A rank that has joined contributes zeros; the last of four never trains."""
    n, r = hvd.size(), hvd.rank()
    for keep in (False, True):
        twins = Twins(hvd)
        for step in range(6):
            if step < 6 - 2 * r:
                twins.optimizer.zero_grad(set_to_none=not keep)
                loss_of(twins.model, *mine(hvd, step)).backward()
                twins.optimizer.step()
            twins.other.zero_grad()
            for rank, (x, y) in enumerate(zip(*(part[0] for part in data(n, step)), strict=True)):
                if step < 6 - 2 * rank:
                    (loss_of(twins.alone, x, y) / n).backward()
            twins.other.step()
        assert hvd.join() in range(n)
        hvd.broadcast_parameters(twins.model.state_dict(), 0)
        close(weights(twins.model), weights(twins.alone))


# -- sparse gradients: on all ranks, on some, dense on one and sparse on another ------------------------------------


def plain(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@with_ranks(1, 2, 3, 4)
def test_sparse_gradients(hvd: Any) -> None:
    warnings.filterwarnings("error", module=r"pycollective\.")
    warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly")  # PyTorch 2.11, whatever its settings
    n, r = hvd.size(), hvd.rank()

    def network() -> Any:
        torch.manual_seed(0)
        return torch.nn.Embedding(10, 3, sparse=True, dtype=torch.float64)

    def words(rank: int, step: int) -> Any:
        return torch.tensor([[1, 2, rank + 3], [4, 4, step + 5]])

    kinds: list[Any] = [
        lambda p: torch.optim.SparseAdam(list(p), lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
    ]
    for kind, as_dense, all_ranks in itertools.product(kinds, (False, True), (True, False)):
        twins = Twins(hvd, lambda model, kind=kind: kind(model.parameters()), network, sparse_as_dense=as_dense)
        for step in range(3):
            twins.zero_grad()
            columns = torch.tensor([1, 1, step == 0])  # in a used row all elements count, zeros too
            for rank in range(n):
                if all_ranks or rank == step % n:
                    ((twins.alone(words(rank, step)) * columns).pow(2).sum() / n).backward()
                    if rank == r:
                        (twins.model(words(rank, step)) * columns).pow(2).sum().backward()
            twins.step()
            assert twins.model.weight.grad.is_sparse
            close(twins.model.weight.grad.to_dense(), twins.alone.weight.grad.to_dense())


@with_ranks(2, 3)
def test_a_sparse_layer_among_dense_ones(hvd: Any) -> None:
    def network() -> Any:
        torch.manual_seed(3)
        words = torch.nn.EmbeddingBag(12, 4, sparse=True, mode="sum")
        return torch.nn.Sequential(words, torch.nn.Linear(4, 2)).double()

    for options in ({}, {"groups": 1}, {"sparse_as_dense": True}):
        twins = Twins(hvd, plain, network, **options)
        x = torch.arange(8 * hvd.size()).reshape(hvd.size(), 2, 4) % 12
        for _ in range(5):
            twins.zero_grad(set_to_none=False)
            twins.model(x[hvd.rank()]).pow(2).mean().backward()
            twins.alone(x.flatten(0, 1)).pow(2).mean().backward()
            twins.step()


@with_ranks(2, 3)
def test_a_gradient_that_is_dense_here_and_sparse_there(hvd: Any) -> None:
    """All ranks learn which one, no rank hangs, and training may continue."""
    n, r = hvd.size(), hvd.rank()

    def network() -> Any:
        torch.manual_seed(3)
        return torch.nn.ModuleDict({"words": torch.nn.Embedding(6, 3), "last": torch.nn.Linear(3, 2)}).double()

    def loss(model: Any, sparse: bool) -> Any:
        rows = torch.nn.functional.embedding(torch.tensor([1, 4, 1]), model["words"].weight, sparse=sparse)
        return model["last"](rows).pow(2).mean()

    def backward(model: Any, sparse: list[int]) -> None:
        if r == 2:  # has no gradient of the embedding
            model["last"](torch.ones(1, 3, dtype=torch.float64)).sum().backward()
        else:
            loss(model, r in sparse).backward()

    for options in ({}, {"groups": 1}, {"compression": hvd.Compression.bf16}):
        model = network()
        momentum = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(momentum, model.named_parameters(), **options)
        for sparse in ([0], [1]):
            optimizer.zero_grad()
            backward(model, sparse)
            with pytest.raises(RuntimeError, match="sparse_as_dense=True") as caught:
                optimizer.step()
            assert f"'words.weight' is dense on rank {1 - sparse[0]}, sparse on rank {sparse[0]}" in str(caught.value)
        optimizer.zero_grad()
        backward(model, [])
        optimizer.step()
        agree(hvd, weights(model))
    twins = Twins(hvd, plain, network, sparse_as_dense=True)
    for step in range(3):
        twins.zero_grad(set_to_none=step % 2 == 0)
        loss(twins.model, sparse=r == step % n).backward()
        loss(twins.alone, sparse=False).backward()
        twins.step()
