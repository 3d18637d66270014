"""Tensors of the same shape whose elements have another order in memory on each rank: right results, or an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pycollective
from pycollective.hvd.basics import engine_of
from pycollective.hvd.process_sets import global_process_set

torch: Any = pytest.importorskip("torch")
from hvd import with_ranks  # noqa: E402

pytestmark = pytest.mark.torch


def _mixed(rank: int) -> Any:
    """A tensor of shape (4, 3, 3, 3), so that channels-last order has the same shape in memory; in it on odd ranks."""
    x = torch.arange(108.0).view(4, 3, 3, 3)
    return x.contiguous(memory_format=torch.channels_last if rank % 2 else torch.contiguous_format)


@with_ranks(2)
def test_operations(hvd: Any) -> None:
    x, plain = _mixed(hvd.rank()), _mixed(0)
    assert torch.equal(hvd.allreduce(x, op=hvd.Sum), 2 * plain)
    assert all(torch.equal(y, 2 * plain) for y in hvd.grouped_allreduce([x, x], op=hvd.Sum))
    assert torch.equal(hvd.allgather(x), torch.cat([plain, plain]))
    assert torch.equal(hvd.reducescatter(x, op=hvd.Sum), 2 * plain[2 * hvd.rank() : 2 * hvd.rank() + 2])
    y = x.clone() if hvd.rank() == 0 else torch.zeros_like(x)
    hvd.broadcast_parameters({"y": y}, root_rank=0)
    assert torch.equal(y, plain)
    comm = engine_of(global_process_set).comm
    for made in (x, np.asfortranarray(plain.numpy()) if hvd.rank() else plain.numpy(), x.numpy()):
        assert np.array_equal(np.asarray(comm.allreduce(made)), 2 * plain.numpy())


@with_ranks(2, 3)
def test_a_model_in_channels_last_order_on_one_rank(hvd: Any) -> None:
    """Its gradients are sent as they are in memory, after a backward pass and in windows."""
    for set_to_none in (True, False):
        for differs_from in (0, 3):
            model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4, 2))
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
            for step in range(differs_from + 1):
                if step == differs_from and hvd.rank() == 1:
                    model.to(memory_format=torch.channels_last)
                optimizer.zero_grad(set_to_none=set_to_none)
                model(torch.ones(2, 3, 3, 3)).sum().backward()
                if step == differs_from:
                    with pytest.raises(pycollective.MismatchError, match=r"0\.weight.*axes=\(0, 2, 3, 1\)"):
                        optimizer.step()
                else:
                    optimizer.step()
