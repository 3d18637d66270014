"""Lab 3: how many steps a training needs to reach a target accuracy, against the batch size.

    python examples/course/lab3_steps_to_target.py --ranks 4

For each batch size, the rate that needs the fewest steps is searched among powers of two, with other seeds than those
that are reported. The noise scale is measured by pycollective.optim.NoiseScale during one of the trainings, on --ranks
ranks.

Published: Shallue et al. 2018 find that doubling the batch first halves the steps (perfect scaling), then saves less
and less, and finally nothing. McCandlish et al. 2018 predict steps = least * (1 + B / rows), B near the noise scale.

Change one line: the target, the momentum, or the network's hidden units (HIDDEN).
"""

from __future__ import annotations

import math

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


def best_rate(data, args, batch: int, start: float) -> float:
    """The rate with the fewest steps, from `start` upward until they are more again."""
    best, fewest = start, math.inf
    for lr in [lr for lr in RATES if lr >= start]:
        most = int(min(PATIENCE * fewest, MOST_ROWS / batch + 500))
        steps = np.mean([steps_to_target(data, args, batch, lr, seed, most) for seed in CHOOSING])
        if steps < fewest:
            best, fewest = lr, steps
        elif np.isfinite(fewest):
            break
    return best


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


def main() -> None:
    args = lab.start(__doc__)
    data = split(lab.dataset(args))[1]
    full, seeds = len(data.train_x), 3 if args.quick else 9
    batches = [1 << power for power in range(0, full.bit_length(), 2 if args.quick else 1)]
    lr, found = RATES[0], {}
    for batch in lab.track(batches, "batch sizes"):
        lr = best_rate(data, args, batch, lr)  # it does not fall as the batch grows
        most = MOST_ROWS // batch + 500
        found[batch] = (lr, [steps_to_target(data, args, batch, lr, seed, most) for seed in range(seeds)])
    usable = [batch for batch in batches if np.isfinite(np.median(found[batch][1]))]
    medians = np.array([np.median(found[batch][1]) for batch in usable])

    # steps = least + samples / batch, by least squares of relative errors
    rows = np.stack([np.ones(len(usable)), 1 / np.array(usable)], 1) / medians[:, None]
    least, samples = np.linalg.lstsq(rows, np.ones(len(usable)), rcond=None)[0]
    ranks, middle = max(2, args.ranks), usable[len(usable) // 2]
    scales = noise_scales(data, ranks, found[middle][0], int(medians[len(usable) // 2]), max(1, middle // ranks))
    scales = [value for value in scales[len(scales) // 4 :] if value > 0]  # without the start of the moving average

    figure, axis = lab.subplots(figsize=(7, 4.5))
    for batch in usable:
        axis.plot([batch] * len(found[batch][1]), found[batch][1], ".", color="C0", alpha=0.5)
    axis.plot(usable, medians, "o-", color="C0", label=f"measured (median of {seeds} seeds)")
    axis.plot(usable, medians[0] * usable[0] / np.array(usable), ":", color="gray", label="perfect scaling")
    axis.plot(usable, least + samples / np.array(usable), "--", color="C1", label="least (1 + B / rows)")
    axis.axvline(samples / least, color="C1", linewidth=0.8)
    axis.axvspan(np.percentile(scales, 15), np.percentile(scales, 85), color="C2", alpha=0.15)
    axis.axvline(np.median(scales), color="C2", label="noise scale (15th to 85th percentile)")
    axis.set(xscale="log", yscale="log", xlabel="rows in a batch")
    axis.set_ylabel(f"steps to {TARGET:.0%} of validation accuracy")
    axis.set_xticks(batches, map(str, batches))
    axis.tick_params("x", which="minor", bottom=False)
    for batch, median in zip(usable, medians, strict=True):
        axis.annotate(f"{found[batch][0]:g}", (batch, median), textcoords="offset points", xytext=(4, 5), fontsize=8)
    axis.legend(fontsize=8, title="numbers: learning rate", title_fontsize=8)
    lab.save(figure, "lab3_steps_to_target", args)

    span = 1 if args.quick else 3  # batch sizes, for the factors at both ends
    lab.conclude(
        args,
        "lab3_steps_to_target",
        "From {small} to {next} rows the steps fall by a factor of {first:.2f}, from {before} to {full} by {last:.2f} "
        "(perfect scaling: {perfect:.0f} and {perfect_last:.0f}). The fitted knee is at {knee:.0f} rows; the measured "
        "noise scale is {scale:.0f}, from {low:.0f} to {high:.0f} in the course of the training.",
        small=usable[0],
        next=usable[span],
        before=usable[-1 - span],
        full=usable[-1],
        first=medians[0] / medians[span],
        last=medians[-1 - span] / medians[-1],
        perfect=usable[span] / usable[0],
        perfect_last=usable[-1] / usable[-1 - span],
        knee=samples / least,
        scale=np.median(scales),
        low=np.percentile(scales, 15),
        high=np.percentile(scales, 85),
        steps={str(batch): found[batch][1] for batch in batches},
        rates={str(batch): found[batch][0] for batch in batches},
    )


if __name__ == "__main__":
    main()
