"""Networks and data for the tests of DistributedOptimizer: each rank trains on its part, a single process on all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

ROWS = 4
"""Rows per rank and backward pass."""


def small(dtype: Any = torch.float64) -> Any:
    """A network with kinds of layers that differ in the shapes of their parameters."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4).eval(), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(5, 3)).to(dtype)


def data(ranks: int, step: int, dtype: Any = torch.float64, passes: int = 1) -> tuple[Any, Any]:
    """Images of shape (passes, ranks, ROWS, 2, 6, 6) and targets of shape (passes, ranks, ROWS, 3)."""
    random = torch.Generator("cpu").manual_seed(1000 + step)
    images = torch.randn((passes, ranks, ROWS, 2, 6, 6), generator=random, dtype=torch.float64, device="cpu")
    targets = torch.randn((passes, ranks, ROWS, 3), generator=random, dtype=torch.float64, device="cpu")
    device = torch.get_default_device()
    return images.to(device, dtype), targets.to(device, dtype)


def loss_of(model: Any, images: Any, targets: Any) -> Any:
    """The mean over rows: for equal parts the mean of means is the overall mean."""
    return nn.functional.mse_loss(model(images), targets)


def weights(model: Any) -> Any:
    """All of a model's parameters in one row."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


Make = Callable[[Any], Any]


def alone(make: Make, ranks: int, steps: int = 4, passes: int = 1, model: Any = None) -> Any:
    """The weights after a training by one process on all data; `make(model)`: the optimizer."""
    model = small() if model is None else model
    optimizer = make(model)
    dtype = next(model.parameters()).dtype
    for step in range(steps):
        images, targets = data(ranks, step, dtype, passes)
        optimizer.zero_grad()
        for x, y in zip(images.flatten(1, 2), targets.flatten(1, 2), strict=True):
            (loss_of(model, x, y) / passes).backward()
        optimizer.step()
    return weights(model)


def together(
    hvd: Any, make: Make, steps: int = 4, passes: int = 1, model: Any = None, set_to_none: bool = True, **options: Any
) -> Any:
    """The weights after a training by all ranks, each on its own data."""
    model = small() if model is None else model
    wrapped = hvd.DistributedOptimizer(
        make(model), named_parameters=model.named_parameters(), backward_passes_per_step=passes, **options
    )
    dtype = next(model.parameters()).dtype
    for step in range(steps):
        images, targets = data(hvd.size(), step, dtype, passes)
        wrapped.zero_grad(set_to_none=set_to_none)
        for x, y in zip(images[:, hvd.rank()], targets[:, hvd.rank()], strict=True):
            (loss_of(model, x, y) / passes).backward()
        wrapped.step()
    return weights(model)


def close(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    """Finite, and within the tolerance everywhere."""
    assert found.shape == expected.shape
    assert found.isfinite().all()
    worst = float((found - expected).abs().max())
    assert worst <= tolerance, f"{worst} apart"


def agree(hvd: Any, found: Any) -> None:
    """All ranks have the same bits."""
    rows = hvd.allgather(found.detach().unsqueeze(0))
    assert all(torch.equal(row, rows[0]) for row in rows), "the ranks' weights differ"


def mine(hvd: Any, step: int) -> tuple[Any, Any]:
    """This rank's images and targets of a step."""
    images, targets = data(hvd.size(), step)
    return images[0, hvd.rank()], targets[0, hvd.rank()]


def everybodys(hvd: Any, step: int) -> tuple[Any, Any]:
    """All ranks' images and targets of a step."""
    images, targets = data(hvd.size(), step)
    return images[0].flatten(0, 1), targets[0].flatten(0, 1)


def decaying(model: Any, **options: Any) -> Any:
    """With momentum and decay: a zero gradient differs from none."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1, **options)


class Twins:
    """Two equal networks: all ranks train one together, each on its own data, and every rank the other on all data.

    Attributes:
        model, optimizer: the former and its DistributedOptimizer.
        alone, other: the latter and its optimizer.
    """

    def __init__(self, hvd: Any, make: Make = decaying, network: Callable[[], Any] = small, **options: Any) -> None:
        self.hvd, self.model, self.alone = hvd, network(), network()
        self.optimizer = hvd.DistributedOptimizer(make(self.model), self.model.named_parameters(), **options)
        self.other = make(self.alone)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in (self.optimizer, self.other):
            optimizer.zero_grad(set_to_none=set_to_none)

    def backward(self, step: int) -> None:
        loss_of(self.model, *mine(self.hvd, step)).backward()
        loss_of(self.alone, *everybodys(self.hvd, step)).backward()

    def step(self) -> None:
        """Take a step with both, after which their weights are equal."""
        self.optimizer.step()
        self.other.step()
        close(weights(self.model), weights(self.alone))
