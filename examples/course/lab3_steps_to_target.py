"""Lab 3: how many steps a training needs to reach a target accuracy, against the batch size.

    python examples/course/lab3_steps_to_target.py --ranks 4

Two panels: a multi-layer network in NumPy on the digits, and a convolutional network in torch on Fashion-MNIST, which
is left out without torch or the data; --data digits:FOLDER names the folder of Fashion-MNIST's files.

For each batch size, the rate that needs the fewest steps is searched among powers of two, with other seeds than those
that are reported. The noise scale is measured by pycollective.optim.NoiseScale during one of the trainings, on --ranks
ranks.

Published: Shallue et al. 2018 find that doubling the batch first halves the steps (perfect scaling), then saves less
and less, and finally nothing. McCandlish et al. 2018 predict steps = least * (1 + B / rows), B near the noise scale.

Change one line: the target, the momentum, or the network's hidden units (HIDDEN).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import lab
import numpy as np
from lab3_network import CHOOSING, Network, powers, sgd, split, train

import pycollective as pc
from pycollective.optim import DistributedSGD, NoiseScale, partition

TARGET = 0.97  # of the validation rows, as in the paper
HIDDEN = 128
MOMENTUM = 0.0
RATES = powers(-7, 2)
PATIENCE = 2  # a rate is given up after this many times the steps of the best one
MOST_ROWS = 100_000  # processed, plus those of 500 steps, before a training is given up
TITLES = {"digits": "digits", "fashion-mnist": "Fashion-MNIST", "cifar-10": "CIFAR-10"}
SENTENCE = (
    "{title}: from {small} to {next} rows the steps fall by a factor of {first:.2f}, from {before} to {full} by "
    "{last:.2f} (perfect scaling: {perfect:.0f} and {perfect_last:.0f}). The fitted knee is at {knee:.0f} rows; the "
    "measured noise scale is {scale:.0f}, from {low:.0f} to {high:.0f} in the course of the training."
)

Trained = Callable[[int, float, int, int], float]
"""Steps to the target, of (batch, rate, seed, most steps)."""
Noise = Callable[[int, float, int, int], list[float]]
"""Noise scales in a training, of (ranks, rate, steps, rows of a rank)."""


def steps_to_target(data, args, batch: int, lr: float, seed: int, most: int) -> float:
    """Infinite if the target is not reached within `most` steps."""
    x, reached = data.test_x.reshape(len(data.test_x), -1), []
    due = 1

    def watch(step, net, parameters):
        nonlocal due
        if step < due:
            return False
        due = max(step + 1, math.ceil(1.04 * step))  # steps are known to 4%
        if net.accuracy(parameters, x, data.test_y) >= TARGET:
            reached.append(step)
        return bool(reached)

    network = Network((x.shape[1], HIDDEN, data.classes))
    train(data, network, batch, most, sgd(lr, MOMENTUM), ranks=args.ranks, seed=seed, watch=watch)
    return reached[0] if reached else math.inf


def noise_scales(data, ranks: int, lr: float, steps: int, rows: int) -> list[float]:
    """The noise scale over the steps of a training with `rows` rows on each rank."""
    x, network = data.train_x.reshape(len(data.train_x), -1), Network((data.train_x[0].size, HIDDEN, data.classes))

    def work(comm: pc.Communicator) -> list[float]:
        parameters = network.parameters(0)
        optimizer, scale, values = DistributedSGD(parameters, lr, MOMENTUM, comm=comm), NoiseScale(rows, 0.9, comm), []
        for step in range(steps):
            share = partition(len(x), comm, seed=1, epoch=step)[:rows]
            network.backward(parameters, x[share], data.train_y[share], optimizer.gradients)
            local = {name: g.copy() for name, g in optimizer.gradients.items()}
            optimizer.step()
            values.append(scale.update(local, optimizer.gradients))
        return values

    return pc.local_world(ranks).run(work)[0]


class Curve:
    """Steps to a target against the batch size.

    Attributes:
        title: the network and its data.
        rate, steps: batch -> the rate, and the steps of each seed.
        usable, medians: the batches whose median is finite, and these medians.
        least, knee: steps = least * (1 + knee / batch), fitted.
        scales: the noise scale in the course of a training.
    """

    def __init__(self, title: str, batches: list[int], rates: list[float], seeds: int, choosing: tuple[int, ...]):
        self.title, self.batches, self.rates, self.seeds, self.choosing = title, batches, rates, seeds, choosing
        self.rate: dict[int, float] = {}
        self.steps: dict[int, list[float]] = {}

    def measure(self, trained: Trained, noise: Noise, ranks: int) -> Curve:
        """`ranks`: for the noise scale, at least two of them; it is measured with a batch of the middle."""
        lr = self.rates[0]
        for batch in lab.track(self.batches, self.title):
            most = MOST_ROWS // batch + 500
            self.rate[batch] = lr = self.best_rate(trained, batch, lr, most)  # it does not fall as the batch grows
            self.steps[batch] = [trained(batch, lr, seed, most) for seed in range(self.seeds)]
        medians = {batch: np.median(steps) for batch, steps in self.steps.items()}
        self.usable = np.array([batch for batch in self.batches if np.isfinite(medians[batch])])
        self.medians = np.array([medians[batch] for batch in self.usable])
        # steps = least + samples / batch, by least squares of relative errors
        terms = np.stack([np.ones(len(self.usable)), 1 / self.usable], 1) / self.medians[:, None]
        self.least, samples = np.linalg.lstsq(terms, np.ones(len(self.usable)), rcond=None)[0]
        self.knee = samples / self.least
        batch = int(self.usable[len(self.usable) // 2])
        ranks = max(2, ranks)
        scales = noise(ranks, self.rate[batch], int(medians[batch]), max(1, batch // ranks))
        self.scales = [value for value in scales[len(scales) // 4 :] if value > 0]  # without the average's start
        return self

    def best_rate(self, trained: Trained, batch: int, start: float, most: int) -> float:
        """The rate with the fewest steps, from `start` upward until they are more again."""
        best, fewest = start, math.inf
        patience = PATIENCE if len(self.choosing) > 1 else 1
        candidates = [lr for lr in self.rates if lr >= start]
        for lr in candidates if len(candidates) > 1 else ():
            limit = int(min(patience * fewest, most))
            steps = np.mean([trained(batch, lr, seed, limit) for seed in self.choosing])
            if steps < fewest:
                best, fewest = lr, steps
            elif np.isfinite(fewest):
                break
        return best

    def draw(self, axis: Any, target: float) -> None:
        usable, medians = self.usable, self.medians
        for batch in usable:
            axis.plot([batch] * self.seeds, self.steps[batch], color="C0", marker=".", linestyle="none", alpha=0.5)
        axis.plot(usable, medians, color="C0", marker="o", linestyle="-", label="measured: median; dots: seeds")
        axis.plot(usable, medians[0] * usable[0] / usable, color="gray", linestyle=":", label="perfect scaling")
        rows = np.geomspace(usable[0], usable[-1])
        axis.plot(
            rows, self.least * (1 + self.knee / rows), color="C1", linestyle="--", label="fit: fewest (1 + B / rows)"
        )
        axis.axvline(self.knee, color="C1", linestyle="--", linewidth=0.8, label="its knee, B")
        axis.axvline(np.median(self.scales), color="C2", linestyle="-.", label="noise scale, 15th to 85th percentile")
        axis.axvspan(*np.percentile(self.scales, (15, 85)), color="C2", alpha=0.15)
        axis.set(xscale="log", yscale="log", xlabel="rows in a batch", title=f"{self.title}\n({self.seeds} seeds)")
        axis.set_ylabel(f"steps to {target:.0%} of validation accuracy")
        axis.set_ylim(bottom=min(medians) / 3)  # below, there is only the line of perfect scaling
        marks = self.batches[:: 2 if len(self.batches) > 6 else 1]
        axis.set_xticks(marks, map(str, marks))
        axis.tick_params("x", which="minor", bottom=False)
        axis.tick_params("y", which="minor", labelleft=False)
        for batch, median in zip(usable, medians, strict=True):
            rate = f"$2^{{{math.log2(self.rate[batch]):.0f}}}$"
            axis.annotate(rate, (batch, median), textcoords="offset points", xytext=(3, 7), fontsize=9)

    def found(self, span: int) -> dict[str, Any]:
        """What the conclusion tells; `span`: batch sizes, for the factors at both ends."""
        usable, medians = self.usable.tolist(), self.medians
        return {
            "title": self.title,
            "small": usable[0],
            "next": usable[span],
            "before": usable[-1 - span],
            "full": usable[-1],
            "first": medians[0] / medians[span],
            "last": medians[-1 - span] / medians[-1],
            "perfect": usable[span] / usable[0],
            "perfect_last": usable[-1] / usable[-1 - span],
            "knee": self.knee,
            "scale": np.median(self.scales),
            "low": np.percentile(self.scales, 15),
            "high": np.percentile(self.scales, 85),
            "steps": {str(batch): steps for batch, steps in self.steps.items()},
            "rates": {str(batch): rate for batch, rate in self.rate.items()},
        }


def multi_layer(args: Any) -> tuple[Curve, float]:
    """The curve of the network in NumPy, and its target."""
    data = split(lab.dataset(args))[1]
    sizes = [1 << power for power in range(0, len(data.train_x).bit_length(), 2 if args.quick else 1)]
    seeds, choosing = (3, CHOOSING[:1]) if args.quick else (9, CHOOSING)
    rates = RATES[2:] if args.quick else RATES
    curve = Curve(f"multi-layer network, {TITLES[args.data]}", sizes, rates, seeds, choosing)
    return curve.measure(partial(steps_to_target, data, args), partial(noise_scales, data), args.ranks), TARGET


def convolutional(args: Any) -> tuple[Curve, float] | None:
    """The curve of the network in torch, and its target; without torch or the data, None."""
    try:
        if find_spec("torch") is None:
            raise FileNotFoundError("torch is not installed")
        import lab3_convolution as convolution

        data = convolution.images(args.folder)
    except FileNotFoundError as error:
        missing = str(error).replace("fashion-mnist:FOLDER", "digits:FOLDER")
        print(f"without the panel of the convolutional network: {missing}", flush=True)
        return None
    sizes = [16, 128, 1024] if args.quick else [1 << power for power in range(3, 12)]
    seeds, choosing = (2, CHOOSING[:1]) if args.quick else (9, CHOOSING)
    rates = convolution.RATES[2:5:2] if args.quick else convolution.RATES
    curve = Curve("convolutional network, Fashion-MNIST", sizes, rates, seeds, choosing)
    trained = partial(convolution.steps_to_target, data, args.ranks)
    return curve.measure(trained, partial(convolution.noise_scales, data), args.ranks), convolution.TARGET


def main() -> None:
    args = lab.start(__doc__)
    curves = [result for measure in (multi_layer, convolutional) if (result := measure(args))]
    figure, axes = lab.subplots(1, len(curves), squeeze=False, figsize=(max(6.5, 4 * len(curves)), 4.4))
    for axis, (curve, target) in zip(axes[0], curves, strict=True):
        curve.draw(axis, target)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=len(curves) + 1,
        title="numbers at the points: learning rate",
        title_fontsize=9,
    )
    lab.save(figure, "lab3_steps_to_target", args)

    first, *others = [curve.found(1 if args.quick else 3) for curve, _ in curves]
    measured = {**first, **({"convolution": others[0]} if others else {})}
    lab.conclude(args, "lab3_steps_to_target", " ".join(SENTENCE.format(**of) for of in [first, *others]), **measured)


if __name__ == "__main__":
    main()
