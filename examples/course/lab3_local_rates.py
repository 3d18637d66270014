"""Lab 3: the local learning rates of LARS, by layer, in the course of training, and by batch size.

    python examples/course/lab3_local_rates.py --ranks 2

A step of SGD changes the weights w of a layer by rate * |g| / |w| of their size, if g is their gradient. One rate for
all layers is therefore a large one for layers with a small ratio |w| / |g|, which limit it, and a small one for those
with a large ratio, which hardly learn. LARS gives each layer a local rate, trust * |w| / |g|, so that a step changes
the weights of all layers by rate * trust of their size. The trust coefficient, one number for all layers, is the part
of the weights that one gradient may change: the more rows it is the mean of, the less noise it has, and the more it
can be trusted.

The network is that of lab3_optimizers.py: three layers of sigmoids, whose slope is at most 1/4, so that each makes the
gradients of the layers below it smaller. The ratios are those of random batches that are as large as the training's
but take no part in it. Rates are those with the best validation accuracy, for each rule and batch size.

Published: You, Gitman and Ginsburg 2017 (https://arxiv.org/abs/1708.03888), table 2, give the ratios of AlexNet after
one step: 5.76 for the weights of conv1, 1345 for those of fc6. They write that the ratio is high at first and falls
rapidly after a few epochs, and that the trust grows with the batch. By statistics, the gradient of k times the rows is
sqrt(k) times smaller where it is mostly noise, and as large where there is little noise.

Change one line: the activation ("relu": what is left of the differences?), DEPTH, or EPOCHS.
"""

from __future__ import annotations

import lab
import numpy as np
from lab3_network import Network, best_rate, layer_wise, powers, sgd, split, spread, train

from pycollective.optim import lars
from pycollective.optim.schedules import cosine, warm_up

DEPTH, WIDTH, EPOCHS = 3, 64, 60
LATER = 20  # epochs after which the effect of the batch size is measured again
TRUST = 0.02
SMALL = 64  # rows of the batch that is compared with the whole set
RULES = {
    # with a rate of 2 ratios first exceed 10,000, and the accuracy with 64 rows is the same
    "SGD": (lambda lr: sgd(lr, 0.9), powers(-3, 0)),
    "LARS": (lambda lr: layer_wise(lars, lr, biases=0.1, trust_coefficient=TRUST), powers(-1, 3)),
}


def run(data, args, rule: str, batch: int, lr: float, seed: int, watch=None):
    network = Network((data.train_x[0].size, *(WIDTH,) * DEPTH, data.classes), "sigmoid")
    steps = EPOCHS * len(data.train_x) // batch
    schedule = warm_up(steps // 10, cosine(steps), start=0.1)
    optimizer = RULES[rule][0](lr)
    return train(data, network, batch, steps, optimizer, ranks=args.ranks, seed=seed, schedule=schedule, watch=watch)


def local_ratios(network: Network, parameters, data, rows: int, seed: int) -> np.ndarray:
    """|w| / |g| of the weights of each layer; |g| is the root mean square over several batches of `rows` rows."""
    x, rng = data.train_x.reshape(len(data.train_x), -1), np.random.default_rng(seed)
    gradients = {name: np.empty_like(p) for name, p in parameters.items()}
    weights = [name for name, p in parameters.items() if p.ndim == 2]  # biases start at 0, where they have no ratio
    squares = []
    for _ in range(min(16, len(x) // rows)):
        batch = rng.permutation(len(x))[:rows]
        network.backward(parameters, x[batch], data.train_y[batch], gradients)
        squares.append([np.sum(np.square(gradients[name], dtype=np.float64)) for name in weights])
    return np.array([np.linalg.norm(parameters[name]) for name in weights]) / np.sqrt(np.mean(squares, 0))


def observe(data, args, rule: str, batch: int, lr: float, seed: int, sizes: list[int]) -> tuple:
    """Accuracy; ratios [epochs, layers]; and for the start and LATER, ratios [sizes, layers] of other batch sizes."""
    courses, by_size = [], []
    per_epoch = len(data.train_x) // batch

    def watch(step: int, network: Network, parameters) -> None:
        epoch, rest = divmod(step, per_epoch)
        if rest == 0:
            courses.append(local_ratios(network, parameters, data, batch, epoch))
        if rest == 0 and epoch in (0, LATER):
            by_size.append([local_ratios(network, parameters, data, rows, epoch) for rows in sizes])

    accuracy = run(data, args, rule, batch, lr, seed, watch).accuracy
    return accuracy, np.array(courses), np.array(by_size)


def main() -> None:
    args = lab.start(__doc__, ranks=2)  # the network is too small for more
    data, validation = split(lab.dataset(args))
    full, seeds = len(data.train_x), 1 if args.quick else 3
    batches = (SMALL, full) if args.quick else (16, SMALL, 256, full)
    sizes = [1 << power for power in range(0, full.bit_length(), 2)]
    rates, accuracies, courses, by_size = {}, {}, {}, {}
    for rule, batch in lab.track([*(("SGD", batch) for batch in batches), ("LARS", full)], "batches and rules"):
        choices, name = RULES[rule][1][2:4] if args.quick else RULES[rule][1], f"{rule}, batch {batch}"
        rates[name] = best_rate(choices, lambda lr, seed, r=rule, b=batch: run(validation, args, r, b, lr, seed))
        seen = [observe(data, args, rule, batch, rates[name], seed, sizes) for seed in range(seeds)]
        accuracies[name], *ratios = zip(*seen, strict=True)
        courses[name], by_size[name] = np.array(ratios[0]), np.median(ratios[1], 0)

    small, large, adapted = f"SGD, batch {SMALL}", f"SGD, batch {full}", f"LARS, batch {full}"
    middle = {name: np.median(course, 0) for name, course in courses.items()}  # [epochs, layers]
    apart = {name: np.median(course.max(2) / course.min(2), 0) for name, course in courses.items()}
    draw(args, middle, apart, accuracies, sizes, by_size[adapted])

    start, first = middle[large][0], middle[small][:, 0]
    lowest = int(np.argmin(first))
    growth = [ratios[-1] / ratios[sizes.index(16)] for ratios in by_size[adapted]]
    lab.conclude(
        args,
        "lab3_local_rates",
        "Before the first step and after {epochs} epochs the largest local rate is {spreads} times the smallest. "
        "Accuracies: {accuracy}. At the best rate of SGD for the whole set, {lr:g}, the first gradient changes the "
        "output layer's weights by {most:.0%} and the first layer's by {least:.2%}; LARS changes those of all by "
        "{step:.0%}. With SGD and {small} rows the first layer's ratio falls from {course[0]:.0f} to {course[1]:.0f} "
        "in {lowest} epochs, and is {course[2]:.0f} in the last. From 16 to {full} rows ratios grow {early} times "
        "before the first step, and {late} times after {later} epochs of LARS; if all were noise, {noise:.0f} times.",
        epochs=EPOCHS,
        spreads=", ".join(f"{values[0]:.0f} and {values[-1]:.1f} ({name})" for name, values in apart.items()),
        accuracy=", ".join(f"{name} {spread(values)}" for name, values in accuracies.items()),
        lr=rates[large],
        most=rates[large] / start[-1],
        least=rates[large] / start[0],
        step=rates[adapted] * TRUST,
        small=SMALL,
        course=(first[0], first[lowest], first[-1]),
        lowest=lowest,
        full=full,
        early=f"{growth[0].min():.1f} to {growth[0].max():.1f}",
        late=f"{growth[1].min():.1f} to {growth[1].max():.1f}",
        later=LATER,
        noise=np.sqrt(full / 16),
        rates=rates,
        apart={name: values.tolist() for name, values in apart.items()},
    )


def draw(args, middle: dict, apart: dict, accuracies: dict, sizes: list[int], by_size) -> None:
    figure, (top, (*bottom, spreads)) = lab.subplots(2, 3, figsize=(9, 6.5))
    for row in (top, bottom):
        for axis in row[1:]:
            axis.sharey(row[0])
        row[0].set_ylabel("|w| / |g|")
    shown = [f"SGD, batch {SMALL}", f"SGD, batch {sizes[-1]}", f"LARS, batch {sizes[-1]}"]
    for axis, name in zip(top, shown, strict=True):
        axis.plot(middle[name])
        axis.set(yscale="log", xlabel="epoch", title=f"{name}:\n{100 * np.mean(accuracies[name]):.0f}% accuracy")
    layers = ["first layer", *(f"layer {i}" for i in range(2, DEPTH + 1)), "output layer"]
    titles = ("before the first step", f"{shown[2]},\nepoch {LATER}")
    for axis, ratios, title in zip(bottom, by_size, titles, strict=True):
        axis.plot(sizes, ratios, marker="o", markersize=4, label=layers)
        axis.plot(sizes, ratios[0, -1] / 2 * np.sqrt(sizes), color="gray", linestyle="-", label="square root")
        axis.set(xscale="log", yscale="log", xlabel="rows in a batch", title=title)
        axis.set_xticks(sizes[::2], map(str, sizes[::2]))
        axis.minorticks_off()
    for i, (name, values) in enumerate(apart.items()):
        style = {"color": "black", "marker": "o", "markevery": 10} if "LARS" in name else {"color": f"C{4 + i}"}
        spreads.plot(values, label=name.replace(" batch", ""), **style)
    spreads.set(yscale="log", xlabel="epoch", title="largest / smallest\n|w| / |g| of a layer")
    figure.legend(*bottom[0].get_legend_handles_labels(), loc="outside lower left", ncols=3)
    figure.legend(
        *spreads.get_legend_handles_labels(), loc="outside lower right", ncols=2, title="rule, rows in a batch"
    )
    lab.save(figure, "lab3_local_rates", args)


if __name__ == "__main__":
    main()
