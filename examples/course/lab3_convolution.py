"""A small convolutional network in torch and its data-parallel training, on Fashion-MNIST; for lab3_steps_to_target.

    data = images()                                                 # FileNotFoundError without the files
    steps = steps_to_target(data, 4, batch=256, lr=0.03, seed=0, most=500)

The ranks are threads, as in the other labs of this part: torch releases Python's lock while it computes. Its gradients
go directly into the memory that the ranks share, where pycollective.optim averages them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from data import load
from lab3_network import powers
from torch import nn

import pycollective as pc
from pycollective.optim import DistributedSGD, NoiseScale, growing_batches, partition
from pycollective.optim.schedules import GrowingBatch

TARGET = 0.80  # of the validation images
MOMENTUM = 0.9
RATES = powers(-7, -1)
ROWS = 1 << 14  # training images, a part of the 60,000, to save time and memory
HELD_OUT = 1024  # validation images
LEAST_ROWS = 512  # a smaller share of a batch is not worth the communication: fewer ranks are used then

torch.set_num_threads(1)  # for each rank, as lab.start does for NumPy


def images(folder: Path | None = None) -> Any:
    """The first ROWS training images and the last HELD_OUT, at half the resolution: train_x, train_y, test_x, test_y.

    Raises:
        FileNotFoundError: there is no Fashion-MNIST.
    """
    data = load("fashion-mnist", folder)

    def halved(x: Any) -> Any:
        return x.reshape(-1, 1, 14, 2, 14, 2).mean((3, 5))

    x, test_x = halved(data.train_x[:ROWS]), halved(data.train_x[-HELD_OUT:])
    mean, deviation = x.mean(), x.std()
    x, test_x = (torch.from_numpy((part - mean) / deviation) for part in (x, test_x))
    y, test_y = (torch.from_numpy(data.train_y[part]) for part in (slice(ROWS), slice(-HELD_OUT, None)))
    return SimpleNamespace(train_x=x, train_y=y, test_x=test_x, test_y=test_y)


def network(seed: int) -> Any:
    """Two convolutions, and a layer for the classes: 9,098 parameters."""
    torch.manual_seed(seed)
    layers = (
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, 10),
    )
    return nn.Sequential(*layers)


def optimizer(model: Any, lr: float, comm: pc.Communicator) -> DistributedSGD:
    """Optimizer of the model's parameters; torch writes its gradients directly into those that this averages."""
    rule = DistributedSGD({name: p.detach() for name, p in model.named_parameters()}, lr, MOMENTUM, comm=comm)
    for name, p in model.named_parameters():
        p.grad = rule.gradients[name]
    return rule


def batches(data: Any, batch: int, seed: int, comm: pc.Communicator) -> Iterator[Any]:
    """This rank's images of one batch after the other, without end."""

    def rows(epoch: int) -> Any:
        return partition(len(data.train_x), comm, seed=seed, epoch=epoch, drop_last=True)

    return growing_batches(rows, GrowingBatch(batch, []), comm)


def backward(data: Any, model: Any, share: Any) -> None:
    """The gradients of the mean loss of these images."""
    for p in model.parameters():
        p.grad.zero_()  # torch adds to it
    nn.functional.cross_entropy(model(data.train_x[share]), data.train_y[share]).backward()


def steps_to_target(data: Any, ranks: int, batch: int, lr: float, seed: int, most: int) -> float:
    """Infinite if the target is not reached within `most` steps."""
    ranks = max(1, min(ranks, batch // LEAST_ROWS))
    models = [network(seed) for _ in range(ranks)]

    def work(comm: pc.Communicator) -> float:
        model, due = models[comm.rank], 10  # it is never reached sooner
        rule = optimizer(model, lr, comm)
        mine = slice(comm.rank, None, comm.size)  # each rank tests a part of the images
        for step, share in zip(range(most + 1), batches(data, batch, seed, comm), strict=False):
            if step >= due:
                due = max(step + 1, math.ceil(1.08 * step))  # steps are known to 8%
                with torch.no_grad():
                    right = (model(data.test_x[mine]).argmax(1) == data.test_y[mine]).sum()
                if comm.allreduce(right.numpy()) >= TARGET * len(data.test_y):
                    return step
            backward(data, model, share)
            rule.step()
        return math.inf

    return pc.local_world(ranks).run(work)[0]


def noise_scales(data: Any, ranks: int, lr: float, steps: int, rows: int) -> list[float]:
    """The noise scale over the steps of a training with `rows` images on each rank."""
    models = [network(0) for _ in range(ranks)]

    def work(comm: pc.Communicator) -> list[float]:
        model, scale, values = models[comm.rank], NoiseScale(rows, 0.9, comm), []
        rule = optimizer(model, lr, comm)
        for _, share in zip(range(steps), batches(data, rows * ranks, 1, comm), strict=False):
            backward(data, model, share)
            local = sum(float((p.grad**2).sum()) for p in model.parameters())  # step overwrites the gradients
            rule.step()
            values.append(scale.update(local, rule.gradients))
        return values

    return pc.local_world(ranks).run(work)[0]
