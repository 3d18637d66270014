"""A training step of a small convolutional network, once with our DistributedOptimizer and once with Gloo's
DistributedDataParallel: same weights, same inputs, same optimizer.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ..ranks.world import World
from ..workload.plan import OURS
from .contender import Contender

__all__ = ["ddp_on_gloo", "distributed_optimizer"]

_BATCH, _CLASSES, _SIDE = 32, 10, 28
_RATE, _MOMENTUM, _SEED = 0.05, 0.9, 5
_CLOSE = 1e-5


def _network(torch: Any) -> Any:
    """Two convolutions and two dense layers: 8 tensors, 21 840 parameters, the size of the usual MNIST example."""
    torch.manual_seed(_SEED)
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, _CLASSES),
    )  # fmt: skip


def _batch(torch: Any, rank: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(rank)
    images = torch.randn(_BATCH, 1, _SIDE, _SIDE, generator=generator)
    return images, torch.randint(_CLASSES, (_BATCH,), generator=generator)


def _descent(torch: Any, model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=_RATE, momentum=_MOMENTUM)


def _step(torch: Any, model: Any, optimizer: Any, images: Any, labels: Any) -> Callable[[], None]:
    loss_of = torch.nn.functional.cross_entropy

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model(images), labels).backward()
        optimizer.step()

    return step


class _Training(Contender):
    """Steps of a model.  A step is right if its weights are those of one process with the batches of all ranks."""

    def __init__(self, library: str, torch: Any, model: Any, optimizer: Any, rank: int) -> None:
        super().__init__(library, _step(torch, model, optimizer, *_batch(torch, rank)))
        self._torch, self._model, self._optimizer = torch, model, optimizer

    def check(self, world: World) -> int:
        torch = self._torch
        expected = _network(torch)
        with torch.no_grad():
            for mine, first in zip(self._model.parameters(), expected.parameters(), strict=True):
                mine.copy_(first)
        for group in self._optimizer.param_groups:  # ignore the momentum of earlier steps
            for parameter in group["params"]:
                self._optimizer.state[parameter].clear()
        batches = [_batch(torch, rank) for rank in range(world.size)]
        images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        _step(torch, expected, _descent(torch, expected), images, labels)()
        world.barrier()
        self.call()
        pairs = zip(self._model.parameters(), expected.parameters(), strict=True)
        return sum(int(((mine - right).abs() > _CLOSE).sum()) for mine, right in pairs)


def ddp_on_gloo(rank: int) -> Contender:
    """DistributedDataParallel with its defaults on the default process group, which is Gloo's.  Collective."""
    torch: Any = importlib.import_module("torch")
    parallel: Any = importlib.import_module("torch.nn.parallel")
    model = parallel.DistributedDataParallel(_network(torch))
    return _Training("gloo", torch, model, _descent(torch, model), rank)


def distributed_optimizer(hvd: Any, rank: int) -> Contender:
    """Training with Horovod's interface, with defaults.  ``hvd`` is pycollective.torch, initialized.  Collective."""
    torch: Any = importlib.import_module("torch")
    model = _network(torch)
    optimizer = hvd.DistributedOptimizer(_descent(torch, model), named_parameters=model.named_parameters())
    return _Training(OURS, torch, model, optimizer, rank)
