"""DistributedOptimizer trains like one process on all data, and its bits do not depend on fusion."""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

import pytest

torch: Any = pytest.importorskip("torch")
from hvd import run, with_ranks  # noqa: E402
from opt import agree, alone, close, decaying, small, together  # noqa: E402
from speed import until  # noqa: E402

OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.05),
    "momentum": lambda model: decaying(model, nesterov=True),
    "Adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True),
    "RMSprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.5, centered=True),
    "Adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.01),
    "two groups": lambda model: torch.optim.SGD(
        [{"params": model[:3].parameters(), "lr": 0.1}, {"params": model[3:].parameters()}], lr=0.01, momentum=0.5
    ),
}


@with_ranks(1, 2, 3, 4)
def test_as_one_process(hvd: Any) -> None:
    for name, make in OPTIMIZERS.items():
        expected = alone(make, hvd.size())
        for set_to_none in (True, False):
            found = together(hvd, make, set_to_none=set_to_none)
            agree(hvd, found)
            close(found, expected)
        assert not torch.equal(expected, alone(make, hvd.size(), steps=3)), f"{name}: nothing is learned"


@with_ranks(1, 2, 3, 4)
def test_other_ways_to_send(hvd: Any) -> None:
    make = OPTIMIZERS["momentum"]
    expected = alone(make, hvd.size())
    close(together(hvd, make, gradient_predivide_factor=2.5), expected)
    for groups in (2, 100, [[0, 7], [3, 1]], [[0, 1, 2, 3, 4, 5, 6, 7]], [[5]], [[], [2, 6]]):
        model = small()
        parameters = list(model.parameters())
        if not isinstance(groups, int):
            groups = [[parameters[i] for i in part] for part in groups]
        close(together(hvd, make, model=model, groups=groups), expected)
    last = alone(make, hvd.size(), model=small().to(memory_format=torch.channels_last))
    for set_to_none in (True, False):
        model = small().to(memory_format=torch.channels_last)
        close(together(hvd, make, model=model, set_to_none=set_to_none), last)
        assert not model[0].weight.is_contiguous()  # otherwise nothing was tested
    for compression, tolerance in ((hvd.Compression.fp16, 1e-3), (hvd.Compression.bf16, 1e-2)):
        for model in (small(), small().to(memory_format=torch.channels_last)):
            found = together(hvd, make, compression=compression, model=model)
            agree(hvd, found)
            close(found, expected, tolerance)
            assert hvd.size() == 1 or not torch.equal(found, expected), "nothing was compressed"


@with_ranks(1, 2, 3, 4)
def test_several_passes(hvd: Any) -> None:
    for name in ("momentum", "Adam"):
        for passes in (2, 3):
            expected = alone(OPTIMIZERS[name], hvd.size(), passes=passes)
            for options in ({}, {"set_to_none": False}, {"groups": 2}):
                close(together(hvd, OPTIMIZERS[name], passes=passes, **options), expected)


@with_ranks(1, 2, 3, 4)
def test_other_operators(hvd: Any) -> None:
    n, r = hvd.size(), hvd.rank()
    numbers = torch.arange(1.0, n + 1)
    for op, of_all in ((hvd.Sum, numbers.sum()), (hvd.Min, 1), (hvd.Max, n), (hvd.Product, numbers.prod())):
        model = torch.nn.Linear(1, 1, bias=False)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), op=op)
        before = model.weight.item()
        (model(torch.ones(1, 1)) * (r + 1)).sum().backward()
        optimizer.step()
        own = r + 1 if n == 1 else float(of_all)
        assert model.weight.item() == pytest.approx(before - own, abs=1e-5)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_fusion_changes_no_bits(n: int) -> None:
    """Nor do settings that only change when a gradient is reduced, and with which others."""
    settings = (
        {},
        {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_CYCLE_TIME": "0.05"},
        {"HOROVOD_FUSION_THRESHOLD": "3000", "HOROVOD_CACHE_CAPACITY": "0", "HOROVOD_CYCLE_TIME": "20"},
        {"HOROVOD_LOG_LEVEL": "debug", "HOROVOD_STALL_CHECK_DISABLE": "1"},
    )
    variants = [bits for env in settings for row in run(n, _bits, env=env) for bits in row]
    assert len(set(variants)) == 1


def _bits(hvd: Any) -> list[bytes]:
    make = OPTIMIZERS["Adam"]
    ways: list[dict[str, Any]] = [{}, {"set_to_none": False}, {"groups": 3}, {"groups": 1, "set_to_none": False}, {}]
    return [together(hvd, make, steps=6, model=small(torch.float32), **way).numpy().tobytes() for way in ways]


@with_ranks(2, 3)
def test_kept_gradients_are_in_windows(hvd: Any) -> None:
    model = small().to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["SGD"](model))
    places = set()
    for _ in range(20):
        loss = model(torch.ones(1, 2, 6, 6, dtype=torch.float64)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        hvd.barrier()
        assert all(not p.grad.any() for p in model.parameters())
        places.add(tuple(p.grad.untyped_storage().data_ptr() for p in model.parameters()))
    *_, last = [p.grad.untyped_storage().data_ptr() for p in model.parameters()]
    assert all(p.grad.untyped_storage().data_ptr() == last for p in model.parameters()), "not in one window"
    assert all(p.grad.stride() == p.stride() for p in model.parameters()), "has to be put in order to be reduced"
    assert len(places) <= 3, "gradients do not stay where they are"


@with_ranks(2)
def test_without_room_for_windows_gradients_are_packed(hvd: Any) -> None:
    from pycollective.hvd import basics

    expected = alone(OPTIMIZERS["momentum"], hvd.size(), steps=8)
    basics.world().engines[0].comm.empty = mock.Mock(side_effect=MemoryError("/dev/shm is full"))
    close(together(hvd, OPTIMIZERS["momentum"], steps=8, set_to_none=False), expected)


@with_ranks(1, 2, 3, 4)
def test_all_kinds_of_parameters(hvd: Any) -> None:
    """Scalars, empty ones, other orders of elements, several types in one model: p.grad is the mean of all ranks'.

    Gradients that a rank sets by hand may have another order of elements than the others'.
    """
    n, r = hvd.size(), hvd.rank()
    tensors = [
        torch.zeros(()),
        torch.zeros(0, 3),
        torch.zeros(7, 5).t(),
        torch.zeros(6, 4)[:, ::2],
        torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.zeros(2, 3, 2, 4, 5, dtype=torch.float64).to(memory_format=torch.channels_last_3d),
        torch.zeros(9, dtype=torch.bfloat16),
        torch.zeros(3, 3, dtype=torch.float16),
        torch.zeros(11, dtype=torch.float64),
    ]
    parameters = [torch.nn.Parameter(t) for t in tensors]

    def slopes(rank: int, step: int) -> list[Any]:
        random = torch.Generator().manual_seed(10 * step + rank)
        return [n * torch.randint(-8, 9, p.shape, generator=random).to(p.dtype) for p in parameters]

    for options in ({}, {"groups": 2}, {"compression": hvd.Compression.bf16}):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.0), **options)
        for step in range(6):
            optimizer.zero_grad(set_to_none=step < 2)
            mine = slopes(r, step)
            torch.stack([(p * slope).sum().double() for p, slope in zip(parameters, mine, strict=True)]).sum().backward(
                create_graph=step == 5 and not options  # p.grad then belongs to a graph
            )
            optimizer.synchronize()
            if step % 2:
                parameters[4].grad, parameters[5].grad = mine[4].clone(), mine[5].clone()
                if r:
                    parameters[4].grad = mine[4].contiguous(memory_format=torch.channels_last)
                    parameters[5].grad = mine[5].contiguous(memory_format=torch.channels_last_3d)
                for p, slope in zip(parameters[6:], mine[6:], strict=True):
                    p.grad = slope.clone()
                optimizer.synchronize()
            with optimizer.skip_synchronize():
                optimizer.step()
            for number, p in enumerate(parameters):
                expected = torch.stack([slopes(rank, step)[number].double() for rank in range(n)]).mean(0)
                assert p.grad.dtype == p.dtype
                assert torch.equal(p.grad.double(), expected), (number, step)
        for p in parameters:
            p.grad = None


@pytest.mark.parametrize("spare", [True, False])
@with_ranks(2, reuse=False)
def test_gradients_are_reduced_during_backward_only_on_spare_cores(hvd: Any, spare: bool) -> None:
    from pycollective.torch.hvd import submission

    submission.have_spare = lambda ranks, threads: spare
    weight = torch.nn.Parameter(torch.zeros(100_000))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
    for step in range(3):
        optimizer.zero_grad()
        (weight.sum() * (hvd.rank() + 1)).backward()
        if spare:
            until(lambda: weight.grad[0] == 1.5)
        else:
            time.sleep(0.2)
            assert weight.grad[0] == hvd.rank() + 1
        optimizer.step()
        assert (weight == -1.5 * (step + 1)).all()
