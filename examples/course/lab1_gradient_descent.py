# %% [markdown]
# # Gradient descent, stochastic and in mini-batches
#
# A line `y = a x + b` is fitted to real images: from how bright the left half is, predict how bright the right half
# is. The loss has two parameters, so we can draw all of it, and the path that each method takes over it.
#
# Change one line and run it again: a rate in `METHODS`, `START`, or the offset of x, which makes the valley narrow.

# %%
import time

import lab
import numpy as np

import pycollective as pc

args = lab.start("Gradient descent on a linear model: full batch, mini-batches, and one example at a time.")
EPOCHS = 8 if args.quick else 30
START = np.array([-1.5, 2.5])  # a, b
METHODS = {  # name: (examples in a step, rate)
    "full batch": (None, 0.5),
    "mini-batch of 32": (32, 0.1),
    "SGD, 1 example": (1, 0.005),
}

# %% [markdown]
# ## The data and the loss
#
# `L(w) = 1/2 mean (a x + b - y)^2`, with the gradient `mean (a x + b - y) (x, 1)`.

# %%
images = lab.dataset(args).train_x
half = images.shape[2] // 2
x, y = images[:, :, :half].mean((1, 2, 3)), images[:, :, half:].mean((1, 2, 3))
x, y = ((v - v.mean()) / v.std() for v in (x.astype(np.float64), y.astype(np.float64)))
x = x + 1  # an offset: now a and b depend on each other, and the valley of the loss is not round


def loss(w, x, y):
    return 0.5 * np.mean((w[0] * x + w[1] - y) ** 2)


def gradient(w, x, y):
    error = w[0] * x + w[1] - y
    return np.array([np.mean(error * x), np.mean(error)])


hessian = np.array([[np.mean(x * x), np.mean(x)], [np.mean(x), 1.0]])  # of the loss: the same everywhere
best = np.linalg.solve(hessian, [np.mean(x * y), np.mean(y)])
curvature = np.linalg.eigvalsh(hessian)
smallest, largest = curvature
print(f"{len(x)} images; minimum at a = {best[0]:.3f}, b = {best[1]:.3f}; curvatures {smallest:.3f} and {largest:.3f}")

# %% [markdown]
# ## Descent
#
# One loop serves all three: they differ only in how many examples a step looks at.


# %%
def descend(batch, rate, epochs, seed=0):
    """All w on the path, and the seconds since the start at each."""
    rng, w = np.random.default_rng(seed), START.copy()
    path, seconds, begin = [w], [0.0], time.perf_counter()
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for rows in np.split(order, range(batch, len(x), batch)):
            w = w - rate * gradient(w, x[rows], y[rows])
            path.append(w)
            seconds.append(time.perf_counter() - begin)
    return np.array(path), np.array(seconds)


runs = {}
for name, (batch, rate) in lab.track(METHODS.items(), "descending", total=len(METHODS)):
    batch = batch or len(x)
    path, seconds = min((descend(batch, rate, EPOCHS) for _ in range(3)), key=lambda one: one[1][-1])  # the fastest
    runs[name] = path, seconds, np.arange(len(path)) * batch, np.array([loss(w, x, y) for w in path]) - loss(best, x, y)

# %% [markdown]
# ## A low, a right and a high rate
#
# Along a direction of curvature `c`, a full-batch step multiplies the distance from the minimum by `1 - rate c`. The
# right rate makes this equally small along both, `2 / (c_1 + c_2)`; above `2 / c_2`, the distance grows.

# %%
a, b = np.meshgrid(np.linspace(-2, 1.8, 80), np.linspace(-1.6, 3, 80))
surface = (
    hessian[0, 0] * (a - best[0]) ** 2 / 2 + hessian[0, 1] * (a - best[0]) * (b - best[1]) + (b - best[1]) ** 2 / 2
)


def draw_surface(axis):
    levels = np.geomspace(0.3, 8, 14)
    axis.contour(a, b, surface + loss(best, x, y), levels=levels, cmap="Greys", linewidths=0.7, linestyles="-")
    axis.plot(*best, "k*", label="minimum")
    axis.set(xlabel="a", ylabel="b", xlim=(a.min(), a.max()), ylim=(b.min(), b.max()))


rates = {"low": 0.1 / largest, "right": 2 / (smallest + largest), "high": 2.1 / largest}
figure, axes = lab.subplots(1, 3, figsize=(10, 3.5))
for axis, (name, rate) in zip(axes, rates.items(), strict=True):
    path, _ = descend(len(x), rate, 20)
    draw_surface(axis)
    axis.plot(*path.T, marker="o", markersize=3, linewidth=1)
    ratio = (loss(path[-1], x, y) - loss(best, x, y)) / (loss(START, x, y) - loss(best, x, y))
    axis.set_title(f"{name}, {rate:.2f}: loss × {ratio:.1g}")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center")
lab.save(figure, "lab1_learning_rates", args)

# %% [markdown]
# ## The same on several ranks
#
# Every rank computes the gradient on its share of the images, and an allreduce averages: the full-batch gradient again.


# %%
def descend_together(comm):
    rows = np.array_split(np.arange(len(x)), comm.size)[comm.rank]
    w, path = START.copy(), [START]
    for _ in range(EPOCHS):
        total = comm.allreduce(gradient(w, x[rows], y[rows]) * len(rows))  # shares may differ by one image
        w = w - METHODS["full batch"][1] * total / len(x)
        path.append(w)
    return np.array(path)


together = pc.local_world(args.ranks).run(descend_together)[0]
difference = float(np.abs(together - runs["full batch"][0]).max())

# %% [markdown]
# ## What happened

# %%
figure, axes = lab.subplots(2, 2, figsize=(9, 7))
draw_surface(axes[0, 0])
for name, (path, seconds, samples, excess) in reversed(runs.items()):
    axes[0, 0].plot(*path[:1500].T, marker="o" if len(path) < 100 else "", markersize=3, linewidth=0.8, label=name)
    thin = np.unique(np.geomspace(1, len(path) - 1, 400).astype(int))  # at most 400 points, from the first step on
    for place, along in zip(axes.flat[1:], (np.arange(len(path)), samples, seconds), strict=True):
        place.plot(along[thin], excess[thin], linewidth=0.8)
axes[0, 0].set_title("the loss, and the paths on it")
figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
for place, label in zip(axes.flat[1:], ("steps", "images seen", "seconds"), strict=True):
    place.set(title=f"loss against {label}", xlabel=label, ylabel="loss - minimum")
    place.set(xscale="log", yscale="log", ylim=(1e-6, 2))
lab.save(figure, "lab1_gradient_descent", args)

# %%
TARGET = 0.05  # of the loss at the start, above the minimum
reached = {}
for name, (_, seconds, samples, excess) in runs.items():
    below = np.flatnonzero(excess < TARGET * excess[0])
    if not len(below):
        reached[name] = {"steps": float("nan"), "images": float("nan")}
        print(f"{name:18} never down to {TARGET:.0%}: its rate is too low or too high")
        continue
    steps, images = int(below[0]), int(samples[below[0]])
    reached[name] = {"steps": steps, "images": images}
    print(f"{name:18} down to {TARGET:.0%} after {steps:4} steps, {images:5} images, {seconds[steps]:.4f} seconds")
excess = runs["full batch"][3]
lab.conclude(
    args,
    "lab1_gradient_descent",
    "to bring the excess loss down to {target:.0%}, the full batch takes {full[steps]} steps and {full[images]:,} "
    "images, batches of 32 take {mini[steps]} steps and {mini[images]:,} images, SGD {single[steps]} of "
    "each; at the end the full batch is {full_end:.1g} above the minimum, and SGD {single_end:.1g}, "
    "where the noise of its gradients keeps it. Near the minimum a full-batch step keeps {kept:.3f} of the excess "
    "loss; theory, (1 - rate * smallest curvature)^2: {theory:.3f}. {ranks} ranks take the same path, up to "
    "{difference:.1g}.",
    target=TARGET,
    **dict(zip(("full", "mini", "single"), reached.values(), strict=True)),
    full_end=excess[-1],
    single_end=runs["SGD, 1 example"][3][-len(x) :].mean(),  # mean over the last epoch
    kept=excess[6] / excess[5],  # by then only the direction along the valley is left, where the curvature is smallest
    theory=(1 - METHODS["full batch"][1] * smallest) ** 2,
    ranks=args.ranks,
    difference=difference,
)
