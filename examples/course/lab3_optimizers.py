"""Lab 3: what brings the accuracy of large batches back: layer-wise rules, noise, more steps, or a batch that grows.

    python examples/course/lab3_optimizers.py --ranks 4

Part 1: a deep network of sigmoids, each of which makes the gradients of the layers below it smaller, is trained with
the whole training set as one batch, by SGD with momentum, LARS, LARC, LAMB and NovoGrad, with equal numbers of steps
and schedules; and by SGD with small batches. Part 2: a network with one hidden layer: a small batch against a large
one, with the remedies of Hoffer et al. Part 3: a batch that grows instead of a rate that decays. Rates are those with
the best validation accuracy, for other seeds than those that are reported.

Published: LARS (You et al. 2017), LAMB (You et al. 2020) and NovoGrad (Ginsburg et al. 2019) train with batches with
which SGD loses accuracy. Hoffer et al. 2017: a rate that grows with the square root of the batch, noise, and as many
steps as with the small batch close the gap in generalisation. Smith et al. 2018: growing batches reach the accuracy of
decaying rates with fewer steps.

Change one line: the depth, the activation ("relu"), or the rates to choose from (RULES).
"""

from __future__ import annotations

import lab
import numpy as np
from lab3_network import Network, Result, best_rate, dots, layer_wise, powers, sgd, split, spread, train

from pycollective.optim import GradientNoise, lamb, larc, lars, novograd
from pycollective.optim.schedules import GrowingBatch, cosine, decay_steps, sqrt_scaling, warm_up

DEPTH, WIDTH, STEPS = 3, 64, 100


RULES = {
    "SGD": (lambda lr: sgd(lr, 0.9), powers(-5, 3)),
    "LARS": (lambda lr: layer_wise(lars, lr, biases=0.1, trust_coefficient=0.02), powers(-1, 3)),
    "LARC": (lambda lr: layer_wise(larc, lr, biases=0.1), powers(4, 10)),
    "LAMB": (lambda lr: layer_wise(lamb, lr), powers(-6, -2)),
    "NovoGrad": (lambda lr: layer_wise(novograd, lr), powers(-7, -3)),
}
SMALL, LARGE, EPOCHS = 64, 1024, 16  # parts 2 and 3; part 1 also trains with batches of SMALL rows
RATES = powers(-5, -1)  # of SMALL rows


def deep(data, validation, args, seeds: int) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Part 1: the rate chosen for each rule, and the accuracy for each seed."""
    network, full = Network((data.train_x[0].size, *(WIDTH,) * DEPTH, data.classes), "sigmoid"), len(data.train_x)
    batches = dict.fromkeys(RULES, full) | {f"SGD, batch {SMALL}": SMALL}
    epochs = STEPS // 2 if args.quick else STEPS

    def run(rows, name: str, lr: float, seed: int):
        steps = epochs * full // batches[name]
        schedule = warm_up(steps // 10, cosine(steps), start=0.1)  # LARC does not scale a step whose rate is 0
        optimizer = RULES[name.split(",")[0]][0](lr)
        return train(rows, network, batches[name], steps, optimizer, ranks=args.ranks, seed=seed, schedule=schedule)

    chosen, reached = {}, {}
    for name in lab.track(batches, "a deep network"):
        rates = RULES[name][1] if name in RULES else RATES
        lr = chosen[name] = best_rate(rates, lambda lr, seed, name=name: run(validation, name, lr, seed))
        reached[name] = [run(data, name, lr, seed).accuracy for seed in range(seeds)]
    return chosen, reached


def shallow(data, args, batch, steps: int, lr: float, *, seed: int, **options) -> Result:
    network = Network((data.train_x[0].size, 128, data.classes))
    return train(data, network, batch, steps, sgd(lr, 0.9), ranks=args.ranks, seed=seed, **options)


def remedies(rows: int, lr: float) -> dict[str, tuple]:
    """Part 2, for a training set of `rows`: batch, steps, rate, and options of `train`."""
    root = sqrt_scaling(lr, LARGE, SMALL)
    few, many = EPOCHS * rows // LARGE, EPOCHS * rows // SMALL
    noise = {"noise": lambda comm: GradientNoise(LARGE, SMALL, comm=comm)}
    return {
        f"batch {SMALL}": (SMALL, many, lr, {}),
        f"batch {LARGE}": (LARGE, few, lr, {}),
        "+ noise": (LARGE, few, lr, noise),  # not with the sqrt rate: each of them gives the variance of small batches
        "+ sqrt rate": (LARGE, few, root, {}),
        "+ all steps": (LARGE, many, lr, {}),
        "+ all steps, noise": (LARGE, many, lr, noise),
        "+ all steps, sqrt rate": (LARGE, many, root, {}),
    }


def growth(rows: int, lr: float) -> dict[str, tuple]:
    """Part 3: after half of the epochs a quarter of the rate or four times the rows, after a quarter more again."""
    quarter = EPOCHS // 4 * rows // SMALL
    decay = {"schedule": decay_steps([2 * quarter, 3 * quarter], 0.25)}
    second = 2 * quarter + quarter // 4
    return {
        "decaying rate": (SMALL, 4 * quarter, lr, decay),
        "growing batch": (GrowingBatch(SMALL, [2 * quarter, second], 4), second + quarter // 16, lr, {}),
    }


def main() -> None:
    args = lab.start(__doc__)
    data, validation = split(lab.dataset(args))
    seeds, rows = 3 if args.quick else 10, len(data.train_x)
    chosen, reached = deep(data, validation, args, seeds)
    steps = EPOCHS * rows // SMALL
    lr = best_rate(RATES, lambda lr, seed: shallow(validation, args, SMALL, steps, lr, seed=seed))
    parts = {f"one batch, {DEPTH} layers of sigmoids": reached}
    ways = {"noise and more steps": remedies(rows, lr), "growing batch": growth(rows, lr)}
    for title, part in ways.items():
        parts[title] = {name: [] for name in part}
        for name, seed in lab.track([(name, seed) for name in part for seed in range(seeds)], title):
            *way, options = part[name]
            parts[title][name].append(shallow(data, args, *way, seed=seed, **options).accuracy)

    figure, axes = lab.subplots(3, 1, height_ratios=[len(part) for part in parts.values()], figsize=(7, 6))
    for axis, (title, part) in zip(axes, parts.items(), strict=True):
        counts = {name: way[1] for name, way in ways.get(title, {}).items()}
        dots(axis, {f"{name} ({counts[name]} steps)" if counts else name: values for name, values in part.items()})
        axis.set(title=title)
    axes[-1].set(xlabel="test accuracy (%)")
    lab.save(figure, "lab3_optimizers", args)

    gains = {rule: 100 * (np.mean(reached[rule]) - np.mean(reached["SGD"])) for rule in RULES if rule != "SGD"}
    mean = {name: 100 * np.mean(values) for part in parts.values() for name, values in part.items()}
    gain = {name: value - mean[f"batch {LARGE}"] for name, value in mean.items()}
    grown = parts["growing batch"]
    lab.conclude(
        args,
        "lab3_optimizers",
        "With the whole training set as one batch, SGD reaches {sgd} in a network of {depth} layers of sigmoids, with "
        "batches of {small} rows {little}; {rules}. In the network with one layer, the large batch loses {lost:.1f} "
        "points; a square-root rate brings back {root:.1f}, noise {noise:.1f}, as many steps as with small batches "
        "{longer:.1f}, these and noise {both:.1f}. A growing batch reaches {grown} in {few} steps, a decaying rate "
        "{decayed} in {many}.",
        sgd=spread(reached["SGD"]),
        depth=DEPTH,
        small=SMALL,
        little=spread(reached[f"SGD, batch {SMALL}"]),
        rules=", ".join(f"{rule} {spread(reached[rule])}, {gain:+.0f} points" for rule, gain in gains.items()),
        lost=mean[f"batch {SMALL}"] - mean[f"batch {LARGE}"],
        root=gain["+ sqrt rate"],
        noise=gain["+ noise"],
        longer=gain["+ all steps"],
        both=gain["+ all steps, noise"],
        grown=spread(grown["growing batch"]),
        decayed=spread(grown["decaying rate"]),
        few=ways["growing batch"]["growing batch"][1],
        many=ways["growing batch"]["decaying rate"][1],
        chosen=chosen,
        rate=lr,
        gains=gains,
        parts=parts,
    )


if __name__ == "__main__":
    main()
