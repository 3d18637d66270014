"""Lab 3: batch normalisation: what it does to the activations, and over which rows it should take its statistics.

    python examples/course/lab3_batch_norm.py --ranks 4

First a network of three hidden layers of sigmoids, with and without batch normalisation: its accuracy, and the 15th,
50th and 85th percentiles of the input of one of its last sigmoids. Then the whole training set as one batch, normalised
over ghost batches of 16, 32 or 64 rows, over the rows of each rank, or over those of all ranks (synchronised).

Published: Ioffe and Szegedy 2015, figure 1: with batch normalisation the network trains faster, to a higher accuracy,
and the percentiles stay stable. Hoffer et al. 2017: ghost batches generalise better than the statistics of a large
batch.

Change one line: the rate (LR), the activation ("relu"), or the sizes of the ghost batches (GHOSTS).
"""

from __future__ import annotations

import lab
import numpy as np
from lab3_network import Network, sgd, spread, train

LR, BATCH = 0.5, 64
HIDDEN = (100, 100, 100)
ACTIVATION = "sigmoid"
GHOSTS = (16, 32, 64)
PERCENTILES = (15, 50, 85)


def network(data, norm: str, ghost: int = 0) -> Network:
    return Network((data.train_x[0].size, *HIDDEN, data.classes), ACTIVATION, norm, ghost)


def watched(data, args, norm: str, epochs: int, seed: int) -> tuple[list[int], list[float], list[list[float]]]:
    """Steps, the accuracy at these, and the percentiles of one input of the last hidden layer's activation."""
    x = data.test_x.reshape(len(data.test_x), -1)
    steps, accuracy, percentiles = [], [], []

    def watch(step, net, parameters):
        if step % 10 == 0:
            steps.append(step)
            accuracy.append(net.accuracy(parameters, x, data.test_y))
            last = net.inputs(parameters, x, training=False)[1][-2]
            percentiles.append(np.percentile(last[:, 0], PERCENTILES))

    total = epochs * len(data.train_x) // BATCH
    result = train(data, network(data, norm), BATCH, total, sgd(LR), ranks=args.ranks, seed=seed, watch=watch)
    return [*steps, total], [*accuracy, result.accuracy], percentiles


def normalised(data, args, norm: str, ghost: int, steps: int, seed: int) -> float:
    full = len(data.train_x) - len(data.train_x) % (64 * args.ranks)  # so that ghost batches fit in each rank's share
    return train(data, network(data, norm, ghost), full, steps, sgd(LR, 0.9), ranks=args.ranks, seed=seed).accuracy


def main() -> None:
    args = lab.start(__doc__)
    data = lab.dataset(args)
    epochs, steps, seeds = (8, 30, 3) if args.quick else (20, 60, 5)
    ghosts = GHOSTS[1:2] if args.quick else GHOSTS

    todo = [(norm, seed) for norm in ("none", "synchronised") for seed in range(seeds)]
    runs = {one: watched(data, args, one[0], epochs, one[1]) for one in lab.track(todo, "with and without")}
    kinds = {f"ghost batches of {ghost}": ("local", ghost) for ghost in ghosts}
    kinds |= {"each rank's rows": ("local", 0), "all ranks' rows": ("synchronised", 0)}
    todo = [(name, seed) for name in kinds for seed in range(seeds)]
    reached = {name: [] for name in kinds}
    for name, seed in lab.track(todo, "ghost batches"):
        reached[name].append(normalised(data, args, *kinds[name], steps, seed))

    figure, axes = lab.subplots(2, 2)
    titles = {"none": "without", "synchronised": "with batch normalisation"}
    final = {norm: [runs[norm, seed][1][-1] for seed in range(seeds)] for norm in titles}
    for (norm, title), axis in zip(titles.items(), axes[0], strict=True):
        steps_seen = runs[norm, 0][0]
        curves = 100 * np.array([runs[norm, seed][1] for seed in range(seeds)])
        axes[1, 0].plot(steps_seen, curves.mean(0), label=title)
        axes[1, 0].fill_between(steps_seen, curves.min(0), curves.max(0), alpha=0.2)
        for percentile, values in zip(PERCENTILES, np.transpose(runs[norm, 0][2]), strict=True):
            axis.plot(steps_seen[:-1], values, label=f"{percentile}th percentile")
        axis.set(xlabel="step", ylabel="input of a last sigmoid", title=title)
    axes[0, 0].legend(fontsize=7)
    axes[1, 0].set(xlabel="step", ylabel="test accuracy (%)", title=f"batches of {BATCH}, {seeds} seeds")
    axes[1, 0].legend(fontsize=7)
    bars = axes[1, 1]
    for i, values in enumerate(reached.values()):
        bars.plot([i] * seeds, 100 * np.array(values), "o", markersize=3, alpha=0.6)
        bars.plot(i, 100 * np.mean(values), "k_", markersize=14)
    bars.set_xticks(
        range(len(reached)),
        [name.replace(" of ", "\nof ").replace("' ", "'\n").replace("'s ", "'s\n") for name in reached],
        fontsize=7,
    )
    bars.set(ylabel="test accuracy (%)", title="one batch: statistics of ...")
    lab.save(figure, "lab3_batch_norm", args)

    best = max((name for name in reached if "ghost" in name), key=lambda name: np.mean(reached[name]))
    gains = 100 * (np.array(reached[best]) - reached["all ranks' rows"])  # pairs with the same seed
    error = gains.std(ddof=1) / np.sqrt(seeds)
    lab.conclude(
        args,
        "lab3_batch_norm",
        "With batch normalisation the network reaches {norm}, without it {plain}. On the whole training set as one "
        "batch, {best} reach {ghost} and synchronised statistics {all}: a difference of {gain:.1f} points with a "
        "standard error of {error:.1f}, which {verdict}.",
        norm=spread(final["synchronised"]),
        plain=spread(final["none"]),
        best=best,
        ghost=spread(reached[best]),
        all=spread(reached["all ranks' rows"]),
        gain=gains.mean(),
        error=error,
        verdict="is beyond the noise of the seeds" if abs(gains.mean()) > 2 * error else "the seeds do not resolve",
        accuracy=final,
        one_batch=reached,
    )


if __name__ == "__main__":
    main()
