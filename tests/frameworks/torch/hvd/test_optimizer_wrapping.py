"""What DistributedOptimizer can be made of, and uses of it: names, schedulers, copies, several of them."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import pickle
import warnings
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hvd import with_ranks  # noqa: E402
from opt import agree, alone, close, data, everybodys, loss_of, mine, small, together, weights  # noqa: E402


def momentum(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(hvd: Any, model: Any, optimizer: Any, steps: range, after: Any = None, all_ranks: bool = False) -> None:
    """On this rank's data, or on all data."""
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, *(everybodys if all_ranks else mine)(hvd, step)).backward()
        optimizer.step()
        if after is not None:
            after()


@with_ranks(1, 2)
def test_refusals(hvd: Any) -> None:
    model = small()
    named = list(model.named_parameters())
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("more than once: a", {"named_parameters": [("a", p) for _, p in named]}),
        ("not in named_parameters", {"named_parameters": named[:-2]}),
        ("named_parameters", {"named_parameters": model.parameters()}),
        ("backward_passes_per_step", {"backward_passes_per_step": 0}),
        ("gradient_predivide_factor", {"gradient_predivide_factor": 2.0, "op": hvd.Sum}),
        ("groups", {"groups": -1}),
        ("groups", {"groups": [["0.weight"]]}),
        ("one group only", {"groups": [[named[0][1]], [named[0][1]]]}),
        ("op must be", {"op": 17}),
    ]
    for text, options in wrong:
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(momentum(model), **options)
    with pytest.raises(ValueError, match="not registered"):
        hvd.DistributedOptimizer(momentum(model), process_set=hvd.ProcessSet([0]))
    with pytest.warns(DeprecationWarning, match="groups"):
        hvd.DistributedOptimizer(momentum(model), num_groups=2)
    hvd.shutdown()
    with pytest.raises(ValueError, match="init"):
        hvd.DistributedOptimizer(momentum(model))


@with_ranks(1, 3)
def test_is_an_optimizer_of_the_same_class(hvd: Any) -> None:
    model = small()
    inner = torch.optim.AdamW(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(inner, ((name, p) for name, p in model.named_parameters()))
    assert isinstance(optimizer, torch.optim.AdamW)
    assert type(optimizer).__name__ == "AdamW"
    assert optimizer.defaults == inner.defaults
    assert optimizer._parameter_names == {p: name for name, p in model.named_parameters()}
    optimizer.param_groups[0]["lr"] = 0.5
    assert inner.param_groups[0]["lr"] == 0.5
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    train(hvd, model, optimizer, range(1))
    optimizer.load_state_dict(optimizer.state_dict())  # torch patches step() there
    train(hvd, model, optimizer, range(1, 3))
    assert calls == ["before", "after"] * 3


@with_ranks(1, 2, 3)
def test_several(hvd: Any) -> None:
    """Optimizers whose parameters have the same names, stepping in turns and at the same time."""
    models = [small() for _ in range(3)]
    optimizers = [hvd.DistributedOptimizer(momentum(m), m.named_parameters()) for m in models]
    for step in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for model in models:
            loss_of(model, *mine(hvd, step)).backward()
        for optimizer in reversed(optimizers):
            optimizer.step()
    for model in models:
        close(weights(model), alone(momentum, hvd.size()))


@with_ranks(1, 2, 3)
def test_wrapped_again(hvd: Any) -> None:
    expected = alone(momentum, hvd.size(), steps=6)
    model = small()
    first = hvd.DistributedOptimizer(momentum(model), model.named_parameters(), compression=hvd.Compression.fp16)
    train(hvd, model, first, range(0))
    second = hvd.DistributedOptimizer(first, model.named_parameters())
    train(hvd, model, second, range(3))
    third = hvd.DistributedOptimizer(second, model.named_parameters())  # keeps the momentum
    assert type(third).__mro__.count(torch.optim.SGD) == 1
    train(hvd, model, third, range(3, 6))
    close(weights(model), expected)
    for old in (first, second):
        with pytest.raises(RuntimeError, match="another DistributedOptimizer"):
            old.step()
    fresh = hvd.DistributedOptimizer(momentum(model), model.named_parameters())  # another optimizer, too
    with pytest.raises(RuntimeError, match="another DistributedOptimizer"):
        third.synchronize()
    train(hvd, model, fresh, range(2))
    agree(hvd, weights(model))
    adaptive = hvd.DistributedOptimizer(fresh, op=hvd.Adasum)
    with pytest.raises(RuntimeError, match="another DistributedOptimizer"), fresh.skip_synchronize():
        fresh.step()
    train(hvd, model, hvd.DistributedOptimizer(adaptive), range(2))
    with pytest.raises(RuntimeError, match="another DistributedOptimizer"):
        adaptive.step()


@with_ranks(2, 3)
def test_wrapped_again_in_the_middle_of_a_step(hvd: Any) -> None:
    model = small()
    first = hvd.DistributedOptimizer(momentum(model), model.named_parameters())
    loss_of(model, *mine(hvd, 0)).backward()
    second = hvd.DistributedOptimizer(first, model.named_parameters())
    second.step()  # the broken step is forgotten
    close(weights(model), weights(small()), 0)
    train(hvd, model, second, range(4))
    close(weights(model), alone(momentum, hvd.size()))


@with_ranks(1, 2)
def test_freed(hvd: Any) -> None:
    """A deleted optimizer reduces nothing: here rank 0 continues alone, which would hang otherwise."""
    model = small()
    optimizer = hvd.DistributedOptimizer(momentum(model), model.named_parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    train(hvd, model, optimizer, range(2), scheduler.step)
    before = {p: len(p._post_accumulate_grad_hooks or {}) for p in model.parameters()}
    del optimizer, scheduler
    gc.collect()
    assert all(count == (hvd.size() > 1) for count in before.values())
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    if hvd.rank() == 0:
        train(hvd, model, momentum(model), range(3))
    hvd.barrier()
    renewed = hvd.DistributedOptimizer(momentum(model), model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), 0)
    train(hvd, model, renewed, range(2))
    agree(hvd, weights(model))


@with_ranks(1, 2)
def test_learning_rate_schedulers(hvd: Any) -> None:
    def schedule(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    expected = small()
    other = momentum(expected)
    other_scheduler = schedule(other)
    train(hvd, expected, other, range(6), other_scheduler.step, all_ranks=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for made_before, op in itertools.product((True, False), (hvd.Average, hvd.Adasum)):
            model = small()
            inner = momentum(model)
            scheduler = schedule(inner) if made_before else None
            optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), op=op)
            scheduler = scheduler or schedule(optimizer)
            train(hvd, model, optimizer, range(3), scheduler.step)
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # creates new parameter groups
            train(hvd, model, optimizer, range(3, 6), scheduler.step)
            assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * 0.5**6)
            if op == hvd.Average:
                close(weights(model), weights(expected))


@with_ranks(1, 2)
def test_copies(hvd: Any) -> None:
    expected = alone(momentum, hvd.size(), steps=6)
    model = small()
    optimizer = hvd.DistributedOptimizer(momentum(model), model.named_parameters())
    train(hvd, model, optimizer, range(3))
    state = optimizer.state_dict()
    for kept in (copy.deepcopy(state), pickle.loads(pickle.dumps(state)), _saved(state)):
        resumed = copy.deepcopy(model)  # without hooks
        assert not any(p._post_accumulate_grad_hooks for p in resumed.parameters())
        again = hvd.DistributedOptimizer(momentum(resumed), resumed.named_parameters())
        again.load_state_dict(kept)
        hvd.broadcast_optimizer_state(again, 0)
        train(hvd, resumed, again, range(3, 6))
        close(weights(resumed), expected)
    for duplicate in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(duplicate) is torch.optim.SGD  # an ordinary one, with its own parameters
        assert duplicate.param_groups[0]["momentum"] == 0.9
        assert len(duplicate.state) == len(optimizer.state)
        duplicate.step()
    _saved(model)  # hooks are no obstacle
    train(hvd, model, optimizer, range(3, 6))
    close(weights(model), expected)


def _saved(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@with_ranks(2, 3, 4, process_sets="dynamic")
def test_process_sets(hvd: Any) -> None:
    n, r = hvd.size(), hvd.rank()
    even = hvd.add_process_set(range(0, n, 2))
    odd = hvd.add_process_set(range(1, n, 2))
    inside = odd if r % 2 else even
    model = small()
    hvd.DistributedOptimizer(momentum(small()), process_set=inside)  # other ranks create another number of them
    if r == 0:
        hvd.DistributedOptimizer(momentum(small()), process_set=odd)
    optimizer = hvd.DistributedOptimizer(momentum(model), model.named_parameters(), process_set=inside)
    expected = small()
    other = momentum(expected)
    for step in range(3):
        images, targets = data(n, step)
        optimizer.zero_grad(set_to_none=step == 1)
        loss_of(model, images[0, r], targets[0, r]).backward()
        optimizer.step()
        other.zero_grad()
        loss_of(expected, *(part[0, inside.ranks].flatten(0, 1) for part in (images, targets))).backward()
        other.step()
    close(weights(model), weights(expected))
    gathered = hvd.allgather(weights(model).unsqueeze(0))
    assert torch.equal(gathered[0], gathered[1]) is False
    # a set that this rank is not in: an ordinary optimizer
    apart, twin = small(), small()
    outside = hvd.DistributedOptimizer(momentum(apart), apart.named_parameters(), process_set=even)
    train(hvd, apart, outside, range(2))
    if r % 2:
        train(hvd, twin, momentum(twin), range(2))
        close(weights(apart), weights(twin))
    # all together again, although ranks have created different optimizers before
    close(together(hvd, momentum), alone(momentum, n))


@with_ranks(2, 3, 4)
def test_parameters_that_differ(hvd: Any) -> None:
    last = hvd.rank() == hvd.size() - 1

    def network(kind: str) -> Any:
        layers = [torch.nn.Linear(2, 3), torch.nn.Linear(3, 4 if last and kind == "wider" else 2)]
        if last and kind == "deeper":
            layers.append(torch.nn.Linear(2, 2))
        return torch.nn.Sequential(*layers).to(torch.float64 if last and kind == "finer" else torch.float32)

    who = f"rank {hvd.size() - 1}"
    for kind, what in (("wider", "1.weight"), ("deeper", "2.weight"), ("finer", "float64"), ("renamed", "no '0.bias'")):
        for options in ({}, {"groups": 1}, {"op": hvd.Adasum}):
            model = network(kind)
            named = [(f"b{name}" if last and kind == "renamed" else name, p) for name, p in model.named_parameters()]
            optimizer = hvd.DistributedOptimizer(momentum(model), named, **options)
            model(torch.ones(1, 2, dtype=model[0].weight.dtype)).sum().backward()
            with pytest.raises(RuntimeError, match="parameters differ") as caught:
                optimizer.step()
            assert who in str(caught.value) and what in str(caught.value)
    close(together(hvd, momentum), alone(momentum, hvd.size()))  # the engine continues


@with_ranks(2, 3)
def test_another_order_of_names(hvd: Any) -> None:
    for keep in (False, True):
        model = small()
        named = list(model.named_parameters())
        optimizer = hvd.DistributedOptimizer(momentum(model), named[:: -1 if hvd.rank() == 1 else 1])
        for step in range(5):
            optimizer.zero_grad(set_to_none=not keep)
            loss_of(model, *mine(hvd, step)).backward()
            optimizer.step()
        close(weights(model), alone(momentum, hvd.size(), steps=5))
    used, others, unused = (torch.nn.Parameter(torch.zeros(1)) for _ in range(3))
    named = [("a", used), ("b", others), ("c", unused)]
    sgd = torch.optim.SGD([used, others, unused], lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, named[:: -1 if hvd.rank() == 1 else 1], op=hvd.Sum)
    (used if hvd.rank() == 0 else others).sum().backward()
    optimizer.step()
    assert [p.item() for p in (used, others, unused)] == [-1, 1 - hvd.size(), 0]
    assert unused.grad is None


# -- Adasum --------------------------------------------------------------------------------------------------------


@with_ranks(1, 2, 3, 4)
def test_adasum(hvd: Any) -> None:
    """The definition: the adaptive sum of the ranks' own steps; an unused parameter does not change."""
    cases: list[Any] = [
        (hvd.Compression.none, 1e-12, lambda model: torch.optim.Adam(model.parameters(), lr=0.01)),
        (hvd.Compression.fp16, 5e-3, momentum),
    ]
    for compression, tolerance, make in cases:
        model, alone_ = (torch.nn.ModuleList([small(), torch.nn.Linear(2, 2).double()]) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(make(model), model.named_parameters(), compression, op=hvd.Adasum)
        other = make(alone_)
        for step in range(3):
            for net, way in ((model, optimizer), (alone_, other)):
                way.zero_grad(set_to_none=step != 1)
                loss_of(net[0], *mine(hvd, step)).backward()
            before = [p.detach().clone() for p in alone_.parameters()]
            optimizer.step()
            other.step()
            with torch.no_grad():
                for p, old in zip(alone_.parameters(), before, strict=True):
                    p.copy_(old + hvd.allreduce(p - old, op=hvd.Adasum))
            close(weights(model), weights(alone_), tolerance)
            agree(hvd, weights(model))
        with pytest.raises(AssertionError, match="skip_synchronize"), optimizer.skip_synchronize():
            pass
