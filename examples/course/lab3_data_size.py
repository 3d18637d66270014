"""Lab 3: test error against the size of the training set, as a power law.

    python examples/course/lab3_data_size.py                         # or --data fashion-mnist

The same network is trained on 1, 2, 4, 8, ... rows, up to all of them. If the error is a * rows^-b, its logarithm over
that of the rows is a straight line of slope -b, and the line through small sets predicts what larger ones are worth
before anybody has collected them.

More steps must not help, or the curve would show steps instead of data: all trainings have at least STEPS steps, those
with many rows more, to see each EPOCHS times, and the rate decays to 0 along a cosine. The lab tests this with twice
the steps. Rates are those with the best validation accuracy, for each size.

The law is fitted, by least squares in logarithms, to the sizes whose error is below a quarter of that of guessing. No
error is above that of guessing, so where the error comes near it, the curve has to bend.

Published: Hestness et al. 2017 (https://arxiv.org/abs/1712.00409) describe three regions: small data, with which a
network can only guess; the power law; and irreducible error, where more data do not help. They report exponents b of
0.07 to 0.35 in most cases, 0.31 for ImageNet, and that better networks shift the curve without changing b. Their
networks grow with the data; here the size is fixed.

Change one line: HIDDEN (does b change, or only the error?), the momentum, or STEPS = 30.
"""

from __future__ import annotations

from dataclasses import replace

import lab
import numpy as np
from lab3_network import CHOOSING, Network, Result, best_rate, powers, sgd, split, train

from pycollective.optim.schedules import cosine

HIDDEN, BATCH, MOMENTUM = 128, 64, 0.9
STEPS, EPOCHS = 600, 20  # a third of both with --quick
RATES = powers(-5, -3)  # to choose from
RESAMPLES = 1000  # of the bootstrap


def run(data, args, rows: int, lr: float, seed: int, times: int = 1) -> Result:
    """Train on `rows` rows; those of one seed contain all of its smaller sets."""
    chosen = np.random.default_rng(seed).permutation(len(data.train_x))[:rows]
    data = replace(data, train_x=data.train_x[chosen], train_y=data.train_y[chosen])
    batch = min(BATCH, rows)
    steps = times * max(STEPS, EPOCHS * rows // batch) // (3 if args.quick else 1)
    network = Network((data.train_x[0].size, HIDDEN, data.classes))
    optimizer = sgd(lr, MOMENTUM)
    return train(data, network, batch, steps, optimizer, ranks=args.ranks, seed=seed, schedule=cosine(steps))


def mistakes(data, result: Result) -> np.ndarray:
    """For each test image, whether it gets a wrong class."""
    network = Network((data.train_x[0].size, HIDDEN, data.classes))
    scores = network.inputs(result.parameters, data.test_x.reshape(len(data.test_x), -1), training=False)[1][-1]
    return scores.argmax(1) != data.test_y


def power_law(rows, errors) -> tuple[float, float]:
    """a and b of error = a * rows^-b, by least squares in logarithms."""
    slope, height = np.polyfit(np.log(rows), np.log(errors), 1)
    return float(np.exp(height)), float(-slope)


def fit(rows, wrong) -> tuple[float, float, float]:
    """a, b, and the error of the largest set relative to a law through the others; wrong: [rows, seeds, images]."""
    errors = np.median(np.maximum(wrong.mean(2), 0.5 / wrong.shape[2]), 1)  # an error of 0 has no logarithm
    a, b = power_law(rows[:-1], errors[:-1])
    return *power_law(rows, errors), errors[-1] / (a * rows[-1] ** -b)


def bootstrap(rows, wrong) -> np.ndarray:
    """For each result of `fit` its 2.5th and 97.5th percentile, with seeds and test images drawn from these."""
    rng, fits = np.random.default_rng(0), []
    for _ in lab.track(range(RESAMPLES), "bootstrap"):
        seeds, images = (rng.integers(size, size=size) for size in wrong.shape[1:])
        fits.append(fit(rows, wrong[:, seeds][:, :, images]))
    return np.percentile(fits, (2.5, 97.5), axis=0).T


def main() -> None:
    args = lab.start(__doc__)
    data, validation = split(lab.dataset(args))
    seeds, full, guessing = (3 if args.quick else 8), len(data.train_x), 1 - 1 / data.classes
    sizes = np.array([full >> power for power in range(0, full.bit_length(), 2 if args.quick else 1)][::-1])
    rates, wrong = {}, []
    for rows in lab.track(sizes.tolist(), "sizes"):
        rates[rows] = best_rate(RATES, lambda lr, seed, rows=rows: run(validation, args, rows, lr, seed))
        wrong.append([mistakes(data, run(data, args, rows, rates[rows], seed)) for seed in range(seeds)])
    wrong = np.array(wrong)
    errors = wrong.mean(2)

    medians = np.median(errors, 1)
    first = min(int(np.sum(medians > guessing / 4)), len(sizes) - 3)  # of the power-law region; a fit needs some sizes
    region = sizes[first:]
    a, b, relative = fit(region, wrong[first:])
    _, exponents, relatives = bootstrap(region, wrong[first:])
    # two digits: more would pretend to know better
    needed, *range_needed = (float(f"{full * 2 ** (1 / exponent):.2g}") for exponent in (b, *exponents[::-1]))
    draw(args, sizes, errors, guessing, first, a, b, needed)
    gains = []
    for rows in lab.track(region.tolist(), "twice the steps"):
        once, twice = (
            np.mean([run(validation, args, rows, rates[rows], seed, times).accuracy for seed in CHOOSING])
            for times in (1, 2)
        )
        gains.append(100 * (twice - once))

    lab.conclude(
        args,
        "lab3_data_size",
        "From {start} to {full} rows the error falls from {from_to[0]:.1%} to {from_to[1]:.1%}, as {a:.0%} * rows^-b "
        "with b = {b:.2f} ({exponents[0]:.2f} to {exponents[1]:.2f}: 95% of bootstrap samples of seeds and test "
        "images). Half the error would need {needed:,.0f} rows ({range_needed[0]:,.0f} to {range_needed[1]:,.0f}). The "
        "largest set's error is {relative:.2f} ({relatives[0]:.2f} to {relatives[1]:.2f}) times what a law through the "
        "smaller ones predicts: {flat}. Twice the steps change the validation accuracy by {gain:+.1f} points on "
        "average, by {most_gain:.1f} at most.",
        start=int(region[0]),
        full=full,
        from_to=(medians[first], medians[-1]),
        a=a,
        b=b,
        exponents=exponents.tolist(),
        needed=needed,
        range_needed=range_needed,
        relative=relative,
        relatives=relatives.tolist(),
        flat="the curve flattens" if relatives[0] > 1.05 else "no irreducible error is seen",
        gain=np.mean(gains),
        most_gain=np.max(np.abs(gains)),
        rates=rates,
        errors=dict(zip(sizes.tolist(), errors.tolist(), strict=True)),
    )


def draw(args, sizes, errors, guessing: float, first: int, a: float, b: float, needed: float) -> None:
    figure, axis = lab.subplots(figsize=(7, 4.8))
    seeds, medians, start, full = errors.shape[1], np.median(errors, 1), sizes[first], sizes[-1]
    border = np.sqrt(start * sizes[first - 1]) if first else start
    axis.axhline(100 * guessing, color="gray", linestyle=":", label="guessing")
    axis.plot(np.repeat(sizes, seeds), 100 * errors.ravel(), ".", color="C0", alpha=0.4, label=f"{seeds} seeds")
    axis.plot(sizes, 100 * medians, color="C0", linestyle="none", marker="o", label="median")
    for ends, line, label in (((start, full), "-", "{a:.0%} × rows^-{b:.2f}"), ((full, needed), "--", "extrapolated")):
        axis.plot(ends, 100 * a * np.array(ends) ** -b, color="C1", linestyle=line, label=label.format(a=a, b=b))
    half = 100 * a * needed**-b
    axis.plot(needed, half, color="C1", linestyle="none", marker="D", label="half the error")
    axis.annotate(f"{needed:,.0f} rows", (needed, half), (6, -9), textcoords="offset points", ha="right", va="top")
    axis.axvspan(sizes[0], border, color="gray", alpha=0.12)
    regions = {"power law": (border, full)}
    if medians[0] > 0.9 * guessing:
        regions["small data"] = (sizes[0], border)
    for name, ends in regions.items():
        axis.text(np.sqrt(ends[0] * ends[1]), 1.02, name, transform=axis.get_xaxis_transform(), ha="center")
    axis.set(xscale="log", yscale="log", xlabel="rows in the training set", ylabel="test error (%)")
    axis.set_xticks(sizes[::-2], [f"{size:,}" for size in sizes[::-2]])
    axis.set_yticks((1, 2, 5, 10, 20, 50, 90), ("1", "2", "5", "10", "20", "50", "90"))
    axis.minorticks_off()
    axis.set_ylim(half / 1.6, 100)
    lab.legend(axis, ncols=3, bbox_to_anchor=(0.5, -0.15))
    lab.save(figure, "lab3_data_size", args)


if __name__ == "__main__":
    main()
