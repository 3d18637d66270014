"""Lab 3: what brings the accuracy of large batches back: layer-wise rules, noise, more steps, or a batch that grows.

    python examples/course/lab3_optimizers.py --ranks 4

Part 1: a deep network is trained with the whole training set as one batch, by SGD with momentum, LARS, LARC, LAMB and
NovoGrad, with equal numbers of steps and schedules. Each rule's rate is the one of three with the lowest training loss.
Part 2: a network with one hidden layer: a small batch against a large one, with the remedies of Hoffer et al.
Part 3: a batch that grows instead of a rate that decays.

Published: LARS (You et al. 2017), LAMB (You et al. 2020) and NovoGrad (Ginsburg et al. 2019) train with batches with
which SGD loses accuracy. Hoffer et al. 2017: a rate that grows with the square root of the batch, noise, and as many
steps as with the small batch close the gap in generalisation. Smith et al. 2018: growing batches reach the accuracy of
decaying rates with fewer steps.

Change one line: the depth, or the rates to choose from (RULES).
"""

from __future__ import annotations

import lab
import numpy as np
from lab3_network import Network, layer_wise, sgd, spread, train

from pycollective.optim import GradientNoise, lamb, larc, lars, novograd
from pycollective.optim.schedules import GrowingBatch, cosine, decay_steps, sqrt_scaling, warm_up

DEPTH, WIDTH = 16, 64
RULES = {
    "SGD": (lambda lr: sgd(lr, 0.9), (0.005, 0.01, 0.02)),
    "LARS": (lambda lr: layer_wise(lars, lr, trust_coefficient=0.02), (0.05, 0.1, 0.2)),
    "LARC": (lambda lr: layer_wise(larc, lr), (0.02, 0.03, 0.05)),
    "LAMB": (lambda lr: layer_wise(lamb, lr), (0.005, 0.01, 0.02)),
    "NovoGrad": (lambda lr: layer_wise(novograd, lr), (0.005, 0.007, 0.01)),
}
SMALL, LARGE, LR = 64, 512, 0.2  # part 2: the rate is that of the small batch


def rules(data, args, steps: int, seeds: int) -> tuple[dict[str, float], dict[str, list]]:
    """Part 1: the rate chosen for each rule, and the results for each seed."""
    network = Network((data.train_x[0].size, *(WIDTH,) * DEPTH, data.classes))
    full = len(data.train_x) - len(data.train_x) % 64
    schedule = warm_up(steps // 10, cosine(steps))

    def run(rule: str, lr: float, seed: int):
        return train(data, network, full, steps, RULES[rule][0](lr), ranks=args.ranks, seed=seed, schedule=schedule)

    def loss(rule: str, lr: float) -> float:  # of seeds that are not used afterwards
        found = [run(rule, lr, seed) for seed in (100, 101)]
        return float(np.mean([np.inf if result.diverged else np.mean(result.losses[-3:]) for result in found]))

    chosen = {
        rule: min(rates, key=lambda lr, rule=rule: loss(rule, lr))
        for rule, (_, rates) in lab.track(RULES.items(), "choosing rates", total=len(RULES))
    }
    todo = lab.track(RULES, "a deep network")
    return chosen, {rule: [run(rule, chosen[rule], seed) for seed in range(seeds)] for rule in todo}


def remedies(data, args, epochs: float, seeds: int) -> dict[str, list[float]]:
    """Part 2: the accuracy for each seed."""
    root = sqrt_scaling(LR, LARGE, SMALL)
    few, many = (round(epochs * len(data.train_x) / batch) for batch in (LARGE, SMALL))

    def noise(comm):
        return GradientNoise(LARGE, SMALL, comm=comm)

    ways = {
        f"batch {SMALL}": (SMALL, many, LR, None),
        f"batch {LARGE}": (LARGE, few, LR, None),
        "+ sqrt rate": (LARGE, few, root, None),
        "+ noise": (LARGE, few, root, noise),
        "+ all steps,\nno noise": (LARGE, many, root, None),
        "+ all steps,\nnoise": (LARGE, many, root, noise),
    }
    return accuracies(data, args, seeds, "noise and more steps", ways)


def growth(data, args, epochs: float, seeds: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Part 3: the accuracy for each seed, and the numbers of steps, for the same number of epochs."""
    half, quarter = epochs / 2 * len(data.train_x), epochs / 4 * len(data.train_x)
    first = round(half / SMALL)
    decayed = [first, first + round(quarter / SMALL)]
    grown = [first, first + round(quarter / (4 * SMALL))]
    ways = {
        "decaying rate": (SMALL, decayed[1] + round(quarter / SMALL), 2 * LR, None, decay_steps(decayed, 0.25)),
        "growing batch": (GrowingBatch(SMALL, grown, 4), grown[1] + round(quarter / (16 * SMALL)), 2 * LR, None),
    }
    return accuracies(data, args, seeds, "a growing batch", ways), {name: way[1] for name, way in ways.items()}


def accuracies(data, args, seeds: int, title: str, ways: dict[str, tuple]) -> dict[str, list[float]]:
    network = Network((data.train_x[0].size, 128, data.classes))
    found = {name: [] for name in ways}
    for name, seed in lab.track([(name, seed) for name in ways for seed in range(seeds)], title):
        batch, steps, lr, noise, *schedule = ways[name]
        options = {"ranks": args.ranks, "seed": seed, "noise": noise, "schedule": schedule[0] if schedule else None}
        found[name].append(train(data, network, batch, steps, sgd(lr), **options).accuracy)
    return found


def main() -> None:
    args = lab.start(__doc__)
    data = lab.dataset(args)
    epochs, seeds = (10, 3) if args.quick else (30, 5)
    chosen, results = rules(data, args, 25 if args.quick else 40, seeds)
    deep = {rule: [result.accuracy for result in found] for rule, found in results.items()}
    shallow = remedies(data, args, epochs, seeds)
    growing, steps = growth(data, args, epochs, seeds)

    figure, axes = lab.subplots(1, 3, width_ratios=(3, 4, 2), figsize=(12, 3.5))
    parts = {f"one batch, {DEPTH} layers": deep, "noise and more steps": shallow, "growing batch": growing}
    for axis, (title, part) in zip(axes, parts.items(), strict=True):
        for i, values in enumerate(part.values()):
            axis.plot([i] * seeds, 100 * np.array(values), "o", markersize=3, alpha=0.6)
            axis.plot(i, 100 * np.mean(values), "k_", markersize=14)
        names = [f"{name}\n{chosen[name]:g}" if name in chosen else name for name in part]
        names = [f"{name}\n{steps[name]} steps" if name in steps else name for name in names]
        axis.set_xticks(range(len(part)), names, fontsize=7)
        axis.set(title=title)
        axis.margins(x=0.15)
    axes[0].set(ylabel="test accuracy (%)")
    lab.save(figure, "lab3_optimizers", args)

    gains = {rule: 100 * (np.mean(deep[rule]) - np.mean(deep["SGD"])) for rule in deep if rule != "SGD"}
    mean = {name: 100 * np.mean(values) for name, values in {**shallow, **growing}.items()}
    lab.conclude(
        args,
        "lab3_optimizers",
        "With the whole training set as one batch, SGD reaches {sgd} in a network of {depth} layers; {rules}. In the "
        "network with one layer, noise changes the large batch's accuracy by {noise:+.1f} points, and by {late:+.1f} "
        "after as many steps as with small batches, which by themselves change it by {longer:+.1f}. A growing batch "
        "reaches {grown} in {few} steps, a decaying rate {decayed} in {many}.",
        sgd=spread(deep["SGD"]),
        depth=DEPTH,
        rules=", ".join(f"{rule} {spread(deep[rule])}, {gain:+.0f} points" for rule, gain in gains.items()),
        noise=mean["+ noise"] - mean["+ sqrt rate"],
        late=mean["+ all steps,\nnoise"] - mean["+ all steps,\nno noise"],
        longer=mean["+ all steps,\nno noise"] - mean["+ sqrt rate"],
        grown=spread(growing["growing batch"]),
        decayed=spread(growing["decaying rate"]),
        few=steps["growing batch"],
        many=steps["decaying rate"],
        chosen=chosen,
        deep=deep,
        shallow=shallow,
    )


if __name__ == "__main__":
    main()
