"""A fully connected network in NumPy with batch normalisation, and its data-parallel training; used by several labs.

    network = Network((64, 128, 10))                                # relu, no normalisation
    data, validation = split(lab.dataset(args))                     # choose rates with `validation`
    result = train(data, network, batch=256, steps=500, ranks=4, optimizer=sgd(0.1, momentum=0.9))

Each rank computes the gradients of its share of a batch, directly in the memory that the ranks share;
`pycollective.optim` averages them and takes the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import pycollective as pc
from pycollective.optim import DistributedOptimizer, DistributedSGD, growing_batches, partition
from pycollective.optim.schedules import GrowingBatch, Schedule, constant

LEAST_ROWS = 64
"""A smaller share of a batch is not worth the communication: `train` then uses fewer ranks."""

CHOOSING = (100, 101, 102)
"""Seeds of the trainings by which rates are chosen; the results that the labs report are of other seeds."""


def split(data: Any) -> tuple[Any, Any]:
    """Two data sets for training on the same rows, a power of two of them, so that batches divide them.

    Returns:
        one with the test rows of `data`; and one whose test rows are the other training rows, for choosing rates.
    """
    rows = 1 << (len(data.train_x) - 1).bit_length() - 1
    x, y = data.train_x, data.train_y
    tested = replace(data, train_x=x[:rows], train_y=y[:rows])
    return tested, replace(tested, test_x=x[rows:], test_y=y[rows:])


class BatchNorm:
    """Batch normalisation of one layer, over groups of rows or over the batches of all ranks.

    Args:
        ghost: rows of a group that is normalised by its own statistics; 0 for all rows of this rank.
        comm: use the statistics of the rows of all ranks together; None for those of this rank alone.
    """

    def __init__(self, features: int, ghost: int, comm: pc.Communicator | None) -> None:
        self.ghost, self.comm = ghost, comm
        self.mean, self.variance = np.zeros(features, np.float32), np.ones(features, np.float32)

    def evaluate(self, z: Any) -> Any:
        return (z - self.mean) / np.sqrt(self.variance + 1e-5)

    def forward(self, z: Any) -> Any:
        groups = z.reshape(len(z) // self.ghost if self.ghost else 1, -1, z.shape[1])
        mean, square = self._averaged(groups.mean(1, keepdims=True), (groups**2).mean(1, keepdims=True))
        variance = np.maximum(square - mean**2, 0)
        for one, other in zip(mean[:, 0], variance[:, 0], strict=True):
            self.mean += 0.1 * (one - self.mean)
            self.variance += 0.1 * (other - self.variance)
        self.scale = 1 / np.sqrt(variance + 1e-5)
        self.normal = (groups - mean) * self.scale
        return self.normal.reshape(z.shape)

    def backward(self, error: Any) -> Any:
        error = error.reshape(self.normal.shape)
        mean, along = self._averaged(error.mean(1, keepdims=True), (error * self.normal).mean(1, keepdims=True))
        return ((error - mean - self.normal * along) * self.scale).reshape(-1, error.shape[2])

    def _averaged(self, *statistics: Any) -> Any:
        if self.comm is None:
            return statistics
        return self.comm.allreduce(np.stack(statistics), op="avg")


@dataclass
class Network:
    """Layers of `sizes`, the first of which is the input; each but the last with an activation.

    Attributes:
        activation: "relu" or "sigmoid".
        norm: "none", "local" (batch normalisation by the statistics of a rank's rows), "synchronised" (of all ranks').
        ghost: with "local", rows of a ghost batch; 0: all of the rank.
    """

    sizes: tuple[int, ...]
    activation: str = "relu"
    norm: str = "none"
    ghost: int = 0
    norms: list[BatchNorm] = field(default_factory=list)

    def parameters(self, seed: int, comm: pc.Communicator | None = None) -> dict[str, Any]:
        """New parameters, float32, and new statistics."""
        rng = np.random.default_rng(seed)
        gain = 2.0 if self.activation == "relu" else 1.0
        parameters = {}
        self.norms = []
        for i, (rows, columns) in enumerate(zip(self.sizes[:-1], self.sizes[1:], strict=True)):
            parameters[f"w{i}"] = rng.normal(0, np.sqrt(gain / rows), (rows, columns)).astype(np.float32)
            parameters[f"b{i}"] = np.zeros(columns, np.float32)
            if self.norm != "none" and i < len(self.sizes) - 2:
                parameters[f"s{i}"] = np.ones(columns, np.float32)  # the scale after normalisation
                self.norms.append(BatchNorm(columns, self.ghost, comm if self.norm == "synchronised" else None))
        return parameters

    def inputs(self, p: dict[str, Any], x: Any, training: bool) -> tuple[list[Any], list[Any]]:
        """The input of each layer, and the input of each activation; the last one is the scores of the classes."""
        layers, activations = [x], []
        for i in range(len(self.sizes) - 1):
            z = layers[-1] @ p[f"w{i}"]
            if i < len(self.norms):
                z = (self.norms[i].forward(z) if training else self.norms[i].evaluate(z)) * p[f"s{i}"]
            z += p[f"b{i}"]
            activations.append(z)
            layers.append(np.maximum(z, 0) if self.activation == "relu" else 1 / (1 + np.exp(-z)))
        return layers[:-1], activations

    def backward(self, p: dict[str, Any], x: Any, y: Any, gradients: dict[str, Any], factors: Any = 1.0) -> float:
        """Write the gradients of the mean cross-entropy, and return this; `factors` multiply the rows' losses."""
        layers, activations = self.inputs(p, x, training=True)
        scores = activations[-1]
        shifted = scores - scores.max(1, keepdims=True)
        exponentials = np.exp(shifted)
        sums = exponentials.sum(1, keepdims=True)
        rows = np.arange(len(y))
        loss = float((np.log(sums[:, 0]) - shifted[rows, y]).mean())
        error = exponentials / sums
        error[rows, y] -= 1
        error *= (np.asarray(factors, np.float32) / len(y))[..., None]
        for i in reversed(range(len(layers))):
            np.sum(error, 0, out=gradients[f"b{i}"])
            if i < len(self.norms):
                np.sum(error * self.norms[i].normal.reshape(error.shape), 0, out=gradients[f"s{i}"])
                error = self.norms[i].backward(error * p[f"s{i}"])
            np.matmul(layers[i].T, error, out=gradients[f"w{i}"])
            if i:
                active = layers[i]  # the output of the activation before
                slope = active > 0 if self.activation == "relu" else active * (1 - active)
                error = error @ p[f"w{i}"].T * slope
        return loss

    def accuracy(self, p: dict[str, Any], x: Any, y: Any) -> float:
        scores = self.inputs(p, x, training=False)[1][-1]
        return float(np.mean(scores.argmax(1) == y)) if np.isfinite(scores).all() else 1 / scores.shape[1]


Optimizer = Callable[[dict[str, Any], pc.Communicator], Any]


def sgd(lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> Optimizer:
    return lambda parameters, comm: DistributedSGD(parameters, lr, momentum, weight_decay, comm)


def layer_wise(rule: Any, lr: float, biases: float | None = None, **options: Any) -> Optimizer:
    """A rule of `pycollective.optim.rules`; biases and scales are not adapted where the rule allows it.

    Args:
        biases: their constant rate; by default that of the weights.
    """

    def make(parameters: dict[str, Any], comm: pc.Communicator) -> DistributedOptimizer:
        plain: dict[str, Any] = {} if rule.__name__ == "novograd" else {"adapt": False}
        if biases is not None:
            plain["lr"] = biases
        overrides = {name: plain for name, p in parameters.items() if p.ndim == 1 and plain}
        return DistributedOptimizer(parameters, rule, comm=comm, overrides=overrides, lr=lr, **options)

    return make


@dataclass
class Result:
    """accuracy: of the test set, from 0 to 1; losses: of the training batches; diverged: some loss was not finite."""

    accuracy: float
    losses: list[float]
    parameters: dict[str, Any]
    diverged: bool = False


def train(
    data: Any,
    network: Network,
    batch: int | GrowingBatch,
    steps: int,
    optimizer: Optimizer,
    *,
    ranks: int = 1,
    seed: int = 0,
    schedule: Schedule | None = None,
    noise: Callable[[pc.Communicator], Any] | None = None,
    watch: Callable[[int, Network, dict[str, Any]], Any] | None = None,
) -> Result:
    """Train on `ranks` threads, or fewer if a rank's share of the batch would be below LEAST_ROWS; rank 0's result.

    Args:
        batch: rows of all ranks together.
        schedule: factor of the rate at a step.
        noise: makes the rank's GradientNoise.
        watch: called by rank 0 with (step, network, parameters) before each step; returns True to stop.
    """
    growing = batch if isinstance(batch, GrowingBatch) else GrowingBatch(batch, [])
    x, y = data.train_x.reshape(len(data.train_x), -1), data.train_y
    factor = schedule or constant()

    @np.errstate(all="ignore")  # a training that diverges overflows
    def work(comm: pc.Communicator) -> Result:
        own = Network(network.sizes, network.activation, network.norm, network.ghost)
        parameters = own.parameters(seed, comm)
        rule = optimizer(parameters, comm)
        full, noisy, losses = rule.lr, noise(comm) if noise else None, []
        rows = growing_batches(
            lambda epoch: partition(len(x), comm, seed=seed, epoch=epoch, drop_last=True), growing, comm
        )
        for step, share in zip(range(steps), rows, strict=False):
            stop = bool(watch and comm.rank == 0 and watch(step, own, parameters))
            if watch and comm.size > 1:
                stop = bool(comm.broadcast(np.array([stop]))[0])
            if stop:
                break
            factors = noisy.factors(len(share), step) if noisy else 1.0
            losses.append(own.backward(parameters, x[share], y[share], rule.gradients, factors))
            rule.lr = full * factor(step)
            rule.step()
            if not np.isfinite(rule.gradients["b0"]).all():  # the averages: the same on all ranks
                return Result(1 / data.classes, losses, parameters, diverged=True)
        test = data.test_x.reshape(len(data.test_x), -1)
        return Result(own.accuracy(parameters, test, data.test_y), losses, parameters)

    usable = max(1, min(ranks, growing.start // LEAST_ROWS))
    return pc.local_world(usable).run(work)[0]


def powers(first: int, last: int) -> list[float]:
    """The powers of two with these exponents, and between: rates to choose from."""
    return [2.0**exponent for exponent in range(first, last + 1)]


def best_rate(rates: Iterable[float], trained: Callable[[float, int], Result]) -> float:
    """The rate with the best mean accuracy of trained(rate, seed); pass it the validation data."""
    return max(rates, key=lambda lr: np.mean([trained(lr, seed).accuracy for seed in CHOOSING]))


def spread(values: Any) -> str:
    """Accuracies of several seeds as text: their mean and range."""
    return f"{100 * np.mean(values):.1f}% ({100 * np.min(values):.1f} to {100 * np.max(values):.1f})"


def dots(axis: Any, accuracies: dict[str, list[float]]) -> None:
    """Draw the accuracies of several seeds: one line for each name, a dot for each seed, and a bar at the mean."""
    for i, values in enumerate(accuracies.values()):
        axis.plot(100 * np.array(values), [i] * len(values), "o", color="C0", markersize=4, alpha=0.6)
        axis.plot(100 * np.mean(values), i, "k|", markersize=14)
    axis.set_yticks(range(len(accuracies)), accuracies)
    axis.set_ylim(len(accuracies) - 0.4, -0.6)
