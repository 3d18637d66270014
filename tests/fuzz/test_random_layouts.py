"""Tensors whose elements are stored in another random order on each rank, on every layer that takes tensors.

Results are right in logical order. What only takes contiguous tensors refuses others, before anything is sent, so that
the rank can call again; and optimizers, which send gradients as they are in memory, find out that the orders differ.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from seeds import choices, seeds

import pycollective
from pycollective.hvd.basics import engine_of
from pycollective.hvd.process_sets import global_process_set

torch: Any = pytest.importorskip("torch")
import c10d  # noqa: E402
import hvd as horovod  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.fuzz]
CALLS = 150


def content(shape: tuple[int, ...], rank: int) -> Any:
    return torch.arange(float(np.prod(shape))).view(shape) + 100.0 * rank


def laid_out(x: Any, choice: random.Random) -> Any:
    """An equal tensor, in a random order in memory."""
    how = choice.choice(("plain", "permuted", "permuted", "channels last", "sliced", "negated", "reversed storage"))
    if how == "permuted":
        order = choice.sample(range(x.dim()), x.dim())
        return x.permute(order).contiguous().permute([order.index(axis) for axis in range(x.dim())])
    if how == "channels last" and x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    if how == "sliced":
        return torch.stack([x, torch.full_like(x, -1)], -1)[..., 0]
    if how == "negated":
        return torch._neg_view(-x)
    if how == "reversed storage":
        return torch.cat([torch.zeros(3), x.flatten()])[3:].view(x.shape)
    return x.clone()


def shapes(choice: random.Random) -> tuple[int, ...]:
    """Often with equal extents, so that the shape in memory is the same in another order."""
    equal = choice.randint(1, 4)
    return (2, *(choice.choice((equal, equal, choice.randint(1, 3))) for _ in range(choice.randint(0, 3))))


def changed(x: Any, call: Callable[[Any], object]) -> Any:
    """What an in-place call makes of a tensor; of a contiguous copy if it refuses others."""
    try:
        call(x)
    except ValueError as error:
        reason = "negative bit" if x.is_contiguous() else "contiguous"
        assert reason in str(error) and (x.is_neg() or not x.is_contiguous()), (error, x.stride())
        x = x.contiguous().resolve_neg().clone()
        call(x)
    return x


@pytest.mark.parametrize("seed", seeds(1))
def test_hvd_and_communicators(seed: str) -> None:
    horovod.run(2, _hvd, seed)


def _hvd(hvd: Any, seed: str) -> None:
    choice, mine, comm = choices(seed), choices(seed, hvd.rank()), engine_of(global_process_set).comm
    for _ in range(CALLS):
        shape, name = choice.choice((shapes(choice), (4, 3, 3, 3))), choice.choice(("given", None))
        every = [content(shape, rank) for rank in range(2)]
        x = laid_out(every[hvd.rank()], mine)
        check(choice, _hvd_calls(hvd, comm, x, every, name), f"{shape}, strides {x.stride()}, {name}")


def check(choice: random.Random, calls: dict[str, Callable[[], tuple[Any, Any]]], what: str) -> None:
    """Make one of the calls, which return what they got and what is expected."""
    name = choice.choice(sorted(calls))
    got, expected = calls[name]()
    assert torch.equal(torch.as_tensor(got), expected), f"{name}: {what}"


def _hvd_calls(hvd: Any, comm: Any, x: Any, every: list[Any], name: str | None) -> dict[str, Any]:
    total, r = every[0] + every[1], hvd.rank()
    return {
        "allreduce": lambda: (hvd.allreduce(x, op=hvd.Sum, name=name), total),
        "allreduce_": lambda: (changed(x, lambda y: hvd.allreduce_(y, op=hvd.Sum, name=name)), total),
        "grouped_allreduce": lambda: (hvd.grouped_allreduce([x, x], op=hvd.Sum, name=name)[1], total),
        "allgather": lambda: (hvd.allgather(x, name=name), torch.cat(every)),
        "reducescatter": lambda: (hvd.reducescatter(x, op=hvd.Sum, name=name), total.chunk(2)[r]),
        "alltoall": lambda: (hvd.alltoall(x, name=name), torch.cat([each.chunk(2)[r] for each in every])),
        "broadcast": lambda: (hvd.broadcast(x, 1, name=name), every[1]),
        "broadcast_": lambda: (changed(x, lambda y: hvd.broadcast_(y, 1, name=name)), every[1]),
        "comm.allreduce": lambda: (comm.allreduce(x), total),
        "comm.allgather": lambda: (comm.allgather(x), torch.cat(every)),
        "comm.broadcast": lambda: (comm.broadcast(x, 1), every[1]),
        "comm.iallreduce": lambda: (comm.iallreduce(x).result(), total),
    }


@pytest.mark.parametrize("seed", seeds(1))
def test_torch_distributed(seed: str) -> None:
    c10d.run(2, _c10d, seed, gloo=False)


def _c10d(world: c10d.World, seed: str) -> None:
    choice, mine = choices(seed), choices(seed, world.rank)
    for _ in range(CALLS):
        shape = choice.choice((shapes(choice), (4, 3, 3, 3)))
        every = [content(shape, rank) for rank in range(2)]
        x = laid_out(every[world.rank], mine)
        check(choice, _c10d_calls(world.rank, x, every), f"{shape}, strides {x.stride()}")


def _c10d_calls(rank: int, x: Any, every: list[Any]) -> dict[str, Any]:
    import torch.distributed as dist

    def gathered() -> Any:
        parts = [torch.empty(x.shape) for _ in range(2)]
        dist.all_gather(parts, x)
        return torch.stack(parts)

    def scattered() -> Any:
        out = torch.empty(x.shape[1:])
        dist.reduce_scatter(out, [x[0], x[1]])
        return out

    total = every[0] + every[1]
    return {
        "all_reduce": lambda: (changed(x, dist.all_reduce), total),
        "broadcast": lambda: (changed(x, lambda y: dist.broadcast(y, 1)), every[1]),
        "all_gather": lambda: (gathered(), torch.stack(every)),
        "reduce_scatter": lambda: (scattered(), total[rank]),
    }


@pytest.mark.parametrize("seed", seeds(2))
def test_gradients(seed: str) -> None:
    horovod.run(2, _gradients, seed)


def _gradients(hvd: Any, seed: str) -> None:
    """A step sums the gradients in logical order, or raises on both ranks."""
    choice, mine = choices(seed), choices(seed, hvd.rank())
    for case in range(12):
        shape = (choice.choice((3, 4)), 3, 3, 3)
        p = torch.nn.Parameter(laid_out(torch.zeros(shape), mine).resolve_neg())
        more = {"backward_passes_per_step": 1} if choice.random() < 0.5 else {"groups": 1}
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)], op=hvd.Sum, **more)
        for step in range(choice.randint(1, 6)):
            before = p.detach().clone()
            optimizer.zero_grad(set_to_none=choice.random() < 0.5)
            (p * content(shape, hvd.rank())).sum().backward()
            try:
                optimizer.step()
            except pycollective.MismatchError as error:
                assert "axes" in str(error) or "shape" in str(error), error
                break
            expected = before - sum(content(shape, rank) for rank in range(2))
            assert torch.equal(p.detach(), expected), (case, step, p.stride())
