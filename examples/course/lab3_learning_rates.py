"""Lab 3: accuracy against batch size, with a fixed learning rate and with rates that grow with the batch.

    python examples/course/lab3_learning_rates.py --ranks 4

All trainings process the same number of epochs, so a batch that is k times as large takes k times fewer steps. The
rate of the smallest batch is the one with the best validation accuracy.

Published: Goyal et al. 2017 scale the rate linearly with the batch, with a gradual warm-up, up to 8192 images of
ImageNet; Krizhevsky 2014 and Hoffer et al. 2017 scale it by the square root. Keskar et al. 2017 report the loss of
accuracy that large batches have otherwise.

Change one line: the momentum, the epochs (with more of them, a fixed rate loses less), or the warm-up.
"""

from __future__ import annotations

import lab
import numpy as np
from lab3_network import Network, Result, best_rate, powers, sgd, split, spread, train

from pycollective.optim.schedules import linear_scaling, sqrt_scaling, warm_up

BASE = 16  # rows of the smallest batch
RATES = powers(-8, -2)  # for this batch, to choose from
MOMENTUM, EPOCHS, HIDDEN = 0.9, 15, 128
WARM_UP = 5  # epochs
KINDS = ("fixed", "square root", "linear", "linear, warm-up")


def rate(kind: str, base: float, batch: int) -> float:
    if kind == "fixed":
        return base
    return (sqrt_scaling if kind == "square root" else linear_scaling)(base, batch, BASE)


def run(data, args, batch: int, kind: str, base: float, seed: int) -> Result:
    """The result with the rate for `batch` rows, if `base` is that of BASE rows."""
    network = Network((data.train_x[0].size, HIDDEN, data.classes))
    per_epoch = len(data.train_x) // batch
    schedule = warm_up(WARM_UP * per_epoch, start=BASE / batch) if "warm-up" in kind else None
    optimizer = sgd(rate(kind, base, batch), MOMENTUM)
    return train(data, network, batch, EPOCHS * per_epoch, optimizer, ranks=args.ranks, seed=seed, schedule=schedule)


def same_on_one_rank(data, args) -> float:
    """The largest difference between weights trained on --ranks ranks and on one rank, on the same batches."""
    network = Network((data.train_x[0].size, HIDDEN, data.classes))
    many, one = (train(data, network, 256, 20, sgd(0.1), ranks=n).parameters for n in (args.ranks, 1))
    return max(float(abs(many[name] - one[name]).max()) for name in many)


def main() -> None:
    args = lab.start(__doc__)
    data, validation = split(lab.dataset(args))
    seeds, full = (3 if args.quick else 10), len(data.train_x)
    sizes = [BASE << power for power in range(0, (full // BASE).bit_length(), 2 if args.quick else 1)]
    choices = lab.track(RATES, f"rates for {BASE} rows")
    base = best_rate(choices, lambda lr, seed: run(validation, args, BASE, "fixed", lr, seed))
    todo = [(batch, kind, seed) for batch in sizes for kind in KINDS for seed in range(seeds)]
    results = {
        one: run(data, args, one[0], one[1], base, one[2])
        for one in lab.track(todo, "batches and rates")
        if one[0] > BASE or one[1] == "fixed"  # for BASE rows, all rates are the same
    }
    results |= {(BASE, kind, seed): results[BASE, "fixed", seed] for kind in KINDS for seed in range(seeds)}

    figure, (left, right) = lab.subplots(1, 2, figsize=(9, 3.5))
    accuracy = {
        name: np.array([[results[batch, name, seed].accuracy for seed in range(seeds)] for batch in sizes])
        for name in KINDS
    }
    for name, reached in accuracy.items():
        left.plot(sizes, 100 * (1 - reached.mean(1)), label=name, marker="o", markersize=3)
        left.fill_between(sizes, 100 * (1 - reached.max(1)), 100 * (1 - reached.min(1)), alpha=0.2)
        losses = results[sizes[-1], name, 0].losses
        right.plot(np.arange(len(losses)) * sizes[-1] / len(data.train_x), losses, label=name)
    title = f"{EPOCHS} epochs, mean and range of {seeds} seeds"
    left.set(xscale="log", yscale="log", xlabel="rows in a batch", ylabel="test error (%)", title=title)
    left.set_xticks(sizes, map(str, sizes))
    left.set_yticks((2, 5, 10, 20, 50, 90), ("2", "5", "10", "20", "50", "90"))
    left.minorticks_off()
    right.set(xlabel="epoch", ylabel="training loss", title=f"batch of {sizes[-1]}", yscale="log")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, title="learning rate")
    lab.save(figure, "lab3_learning_rates", args)

    small, fixed, root = (accuracy[n][i] for n, i in (("fixed", 0), ("fixed", -1), ("square root", -1)))
    failing = [b for b, reached in zip(sizes, accuracy["linear"], strict=True) if reached.mean() < 2 / data.classes]
    warm = accuracy["linear, warm-up"]
    saved = [b for b in failing if warm[sizes.index(b)].mean() >= 2 / data.classes]
    lab.conclude(
        args,
        "lab3_learning_rates",
        "With a fixed rate of {rate:g}, accuracy goes from {small} with batches of {base} rows to {fixed} with {full}; "
        "square-root scaling reaches {root}, which recovers {share:.0%} of the difference. {linear} On {ranks} ranks "
        "and on one, weights differ by at most {rounding:.1g}.",
        small=spread(small),
        fixed=spread(fixed),
        root=spread(root),
        base=BASE,
        rate=base,
        full=sizes[-1],
        share=(root.mean() - fixed.mean()) / (small.mean() - fixed.mean()),
        linear=describe_linear(failing, saved),
        failing=failing,
        saved=saved,
        ranks=args.ranks,
        rounding=same_on_one_rank(data, args),
        sizes=sizes,
        accuracy={name: reached.tolist() for name, reached in accuracy.items()},
    )


def describe_linear(failing: list[int], saved: list[int]) -> str:
    if not failing:
        return "Linear scaling works for all of these batches."
    rows = ", ".join(map(str, failing))
    text = f"Linear scaling fails, with an accuracy near that of guessing, for batches of {rows} rows"
    return f"{text}; gradual warm-up prevents that for {', '.join(map(str, saved)) if saved else 'none of them'}."


if __name__ == "__main__":
    main()
