"""Lab 3: batch normalisation: what it does to the activations, and over which rows it should take its statistics.

    python examples/course/lab3_batch_norm.py --ranks 4

First a network of three hidden layers of sigmoids, with and without batch normalisation: its accuracy, and the 15th,
50th and 85th percentiles of the input of one of its last sigmoids. Then the whole training set as one batch, normalised
over ghost batches of 16, 32 or 64 rows, over the rows of each rank, or over those of all ranks (synchronised). Each
kind of training has the rate with the best validation accuracy.

Published: Ioffe and Szegedy 2015, figure 1: with batch normalisation the network trains faster, to a higher accuracy,
and the percentiles stay stable. Hoffer et al. 2017: ghost batches generalise better than the statistics of a large
batch.

Change one line: the rates to choose from (RATES), the activation ("relu"), or the sizes of the ghost batches (GHOSTS).
"""

from __future__ import annotations

import lab
import numpy as np
from lab3_network import Network, Result, best_rate, dots, powers, sgd, split, spread, train

BATCH = 64
RATES = powers(-3, 3)
HIDDEN = (100, 100, 100)
ACTIVATION = "sigmoid"
GHOSTS = (16, 32, 64)
PERCENTILES = (15, 50, 85)


def network(data, norm: str, ghost: int = 0) -> Network:
    return Network((data.train_x[0].size, *HIDDEN, data.classes), ACTIVATION, norm, ghost)


def in_batches(data, args, norm: str, epochs: int, lr: float, seed: int, watch=None) -> Result:
    """Train with batches of BATCH rows."""
    steps = epochs * len(data.train_x) // BATCH
    return train(data, network(data, norm), BATCH, steps, sgd(lr), ranks=args.ranks, seed=seed, watch=watch)


def watched(data, args, norm: str, epochs: int, lr: float, seed: int) -> tuple[list[int], list, list]:
    """Steps, the accuracy at these, and the percentiles of one input of the last hidden layer's activation."""
    x = data.test_x.reshape(len(data.test_x), -1)
    steps, accuracy, percentiles = [], [], []

    def watch(step, net, parameters):
        if step % 10 == 0:
            steps.append(step)
            accuracy.append(net.accuracy(parameters, x, data.test_y))
            last = net.inputs(parameters, x, training=False)[1][-2]
            percentiles.append(np.percentile(last[:, 0], PERCENTILES))

    result = in_batches(data, args, norm, epochs, lr, seed, watch)
    return [*steps, len(result.losses)], [*accuracy, result.accuracy], percentiles


def as_one(data, args, norm: str, ghost: int, steps: int, lr: float, seed: int) -> Result:
    """Train with the whole training set as one batch."""
    full = len(data.train_x) - len(data.train_x) % (64 * args.ranks)  # so that ghost batches fit in each rank's share
    return train(data, network(data, norm, ghost), full, steps, sgd(lr, 0.9), ranks=args.ranks, seed=seed)


def main() -> None:
    args = lab.start(__doc__)
    data, validation = split(lab.dataset(args))
    epochs, steps, seeds = (8, 20, 3) if args.quick else (20, 40, 10)
    ghosts, rates, runs = GHOSTS[1:2] if args.quick else GHOSTS, {}, {}
    for norm in lab.track(("none", "synchronised"), "without and with"):
        rates[norm] = best_rate(RATES, lambda lr, seed, norm=norm: in_batches(validation, args, norm, epochs, lr, seed))
        runs |= {(norm, seed): watched(data, args, norm, epochs, rates[norm], seed) for seed in range(seeds)}
    kinds = {f"ghost batches of {ghost}": ("local", ghost) for ghost in ghosts}
    kinds |= {"each rank's rows": ("local", 0), "all ranks' rows": ("synchronised", 0)}
    reached = {}
    for name, kind in lab.track(kinds.items(), "one batch", total=len(kinds)):
        few = RATES[1:5]  # with momentum, larger rates are not needed
        lr = rates[name] = best_rate(few, lambda lr, seed, kind=kind: as_one(validation, args, *kind, steps, lr, seed))
        reached[name] = [as_one(data, args, *kind, steps, lr, seed).accuracy for seed in range(seeds)]

    figure, axes = lab.subplots(2, 2, figsize=(10, 7.5))
    titles = {"none": "without batch normalisation", "synchronised": "with batch normalisation"}
    final = {norm: [runs[norm, seed][1][-1] for seed in range(seeds)] for norm in titles}
    for (norm, title), axis in zip(titles.items(), axes[0], strict=True):
        steps_seen = runs[norm, 0][0]
        curves = 100 * np.array([runs[norm, seed][1] for seed in range(seeds)])
        axes[1, 0].plot(steps_seen, curves.mean(0), label=title)
        axes[1, 0].fill_between(steps_seen, curves.min(0), curves.max(0), alpha=0.2)
        for percentile, values in zip(PERCENTILES, np.transpose(runs[norm, 0][2]), strict=True):
            axis.plot(steps_seen[:-1], values, label=f"{percentile}th percentile")
        axis.set(xlabel="step", ylabel="input of a last sigmoid", title=title)
        lab.legend(axis, ncols=3, columnspacing=1)
    low, high = zip(*(axis.get_ylim() for axis in axes[0]), strict=True)
    for axis in axes[0]:
        axis.set_ylim(min(low), max(high))
    axes[1, 0].set(xlabel="step", ylabel="test accuracy (%)", title=f"batches of {BATCH}, {seeds} seeds")
    lab.legend(axes[1, 0])
    dots(axes[1, 1], reached)
    axes[1, 1].set(xlabel="test accuracy (%)", title="one batch; statistics of")
    lab.save(figure, "lab3_batch_norm", args)

    ghost = f"ghost batches of {GHOSTS[1]}"
    gains = 100 * (np.array(reached[ghost]) - reached["all ranks' rows"])  # pairs with the same seed
    error = gains.std(ddof=1) / np.sqrt(seeds)
    lab.conclude(
        args,
        "lab3_batch_norm",
        "With batch normalisation the network reaches {norm}, without it {plain}. On the whole training set as one "
        "batch, {which} reach {ghost} and synchronised statistics {all}: a difference of {gain:.1f} points with a "
        "standard error of {error:.1f}, which {verdict}.",
        norm=spread(final["synchronised"]),
        plain=spread(final["none"]),
        which=ghost,
        ghost=spread(reached[ghost]),
        all=spread(reached["all ranks' rows"]),
        gain=gains.mean(),
        error=error,
        verdict="is beyond the noise of the seeds" if abs(gains.mean()) > 2 * error else "the seeds do not resolve",
        accuracy=final,
        one_batch=reached,
        rates=rates,
    )


if __name__ == "__main__":
    main()
