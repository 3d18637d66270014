# %% [markdown]
# # Gossip: how fast do ranks agree that only speak with neighbours?
#
# In each step every rank replaces x by a weighted sum of its own and its neighbours' x. Linear algebra predicts how
# fast the disagreement shrinks: by 1 - the spectral gap of the graph per step. We measure it, then train with it.
#
# Change one line and run it again: a graph in `GRAPHS`, a function of (rank, size, step), or the rate.

# %%
import lab
import network
import numpy as np

import pycollective as pc
from pycollective import graphs
from pycollective.optim import DistributedSGD, GossipSGD, consensus_distance

args = lab.start("Gossip: predicted and measured contraction, and training with neighbours only.", ranks=8, fewest=2)
data = lab.dataset(args)
GRAPHS = [graphs.ring, graphs.star, graphs.exponential, graphs.one_peer, graphs.complete]
GRAPHS += [graphs.random_pairs(seed=1), graphs.random_regular(degree=3, seed=1)]
SEEDS = range(2 if args.quick else 5)
EPOCHS = 12 if args.quick else 30
RATE, BATCH = 0.2, 8
STEPS, DRAWS = 100, 200 if args.quick else 1000

# %% [markdown]
# ## Contraction
#
# `comm.mix` alone, without training. The rate is that of the last steps before rounding ends it. For a graph that is
# drawn again in each step, x is drawn again too, and the rate is the root of the mean squared ratio of DRAWS steps.


# %%
STARTS = np.random.default_rng(0).normal(size=(max(STEPS, DRAWS), args.ranks, 10))  # x of each step


def disagreement(x):
    return np.linalg.norm(x - x.mean(-2, keepdims=True), axis=(-2, -1))  # the ranks are the last axis but one


def mix(comm, graph, fresh):
    """This rank's rows before and after each step; `fresh`: each step starts from a new x."""
    rows, row = [], STARTS[0, comm.rank]
    for step in range(DRAWS if fresh else STEPS):
        before = STARTS[step, comm.rank] if fresh else row
        row = comm.mix(before, graph, step)
        rows.append((before, row))
    return rows


def ratios(graph, fresh=False):
    """Disagreement after each step / before it; 0 where only rounding errors are left."""
    rows = np.array(pc.local_world(args.ranks).run(lambda comm: mix(comm, graph, fresh)))  # rank, step, before or after
    before, after = disagreement(rows.transpose(2, 1, 0, 3))
    return np.where(before > 1e-12, after / np.maximum(before, 1e-300), 0)


def contraction(graph):
    """The disagreement from step 0 on, relative to the start; the measured rate per step, and its standard error."""
    course = np.cumprod([1, *ratios(graph)])
    period = graph.period_of(args.ranks)
    if period is None:
        rate = np.sqrt(np.mean(squares := ratios(graph, fresh=True) ** 2))
        return course, rate, squares.std() / np.sqrt(DRAWS) / (2 * rate)
    end = np.count_nonzero(course > 1e-12) // period * period
    middle = end // 2 // period * period
    rate = (course[end - period] / course[middle]) ** (1 / (end - period - middle)) if end > 3 * period else 0.0
    return course, rate, 0.0


courses, predicted, measured, uncertain = {}, {}, {}, {}
for graph in lab.track(GRAPHS, "mixing", total=len(GRAPHS)):
    name = graph.name
    courses[name], measured[name], uncertain[name] = contraction(graph)
    predicted[name] = 1 - graph.spectral_gap(args.ranks)
    print(f"{name:34} predicted {predicted[name]:.4f}  measured {measured[name]:.4f} +- {uncertain[name]:.4f}")

# %% [markdown]
# ## Training
#
# A small network on the data, each rank with its share. At the end the ranks' models are averaged once.

# %%
train_x, test_x = network.flat(data.train_x), network.flat(data.test_x)


def train(comm, graph, seed):
    """The test accuracy of the (averaged) model, and the consensus distance over the steps."""
    params = network.parameters(train_x.shape[1], 32, 10, seed)
    common = {"lr": RATE, "momentum": 0.9, "comm": comm}
    sgd = GossipSGD(params, graph, **common) if graph else DistributedSGD(params, **common)
    distances = []
    for step, rows in enumerate(network.batches(comm, len(train_x), BATCH, EPOCHS, seed)):
        sgd.step(network.gradients(params, train_x[rows], data.train_y[rows]))
        if step % 10 == 0:
            distances.append(consensus_distance(comm, params))
    if graph:
        sgd.average_parameters()
    return network.accuracy(params, test_x, data.test_y), distances


accuracies, distances = {}, {}
for graph in lab.track([None, *GRAPHS], "training", total=len(GRAPHS) + 1):
    name = graph.name if graph else "allreduce"
    runs = [pc.local_world(args.ranks).run(lambda comm, of=(graph, seed): train(comm, *of))[0] for seed in SEEDS]
    accuracies[name] = [accuracy for accuracy, _ in runs]
    distances[name] = runs[0][1]

# %% [markdown]
# ## What happened

# %%
figure, axes = lab.subplots(2, 2, figsize=(10, 8))
colours = {"allreduce": "k", **{name: f"C{i}" for i, name in enumerate(courses)}}
markers = dict(zip(colours, "*osD^vPX", strict=True))
for name, course in courses.items():
    seen = course > 1e-13
    dots = {"color": colours[name], "marker": markers[name], "markersize": 5}
    axes[0, 0].plot(np.flatnonzero(seen), course[seen], **dots, linestyle="", markevery=4)
    if 0 < predicted[name] < 1:
        axes[0, 0].plot(predicted[name] ** np.arange(STEPS), color=colours[name], linewidth=0.8, linestyle="-")
    axes[0, 1].errorbar(predicted[name], measured[name], uncertain[name], **dots)
    axes[1, 1].plot(10 * np.arange(len(distances[name])), distances[name], **dots, linewidth=1, markevery=5, label=name)
axes[0, 0].set(yscale="log", ylim=(1e-13, 2), xlabel="steps", title="disagreement (dots), predicted slope (lines)")
axes[0, 1].plot([0, 1], [0, 1], "k-", linewidth=0.6)
axes[0, 1].set(xlabel="predicted", ylabel="measured", title="contraction per step")
figure.legend(*axes[1, 1].get_legend_handles_labels(), loc="outside lower center", ncols=4)
for name, found in accuracies.items():
    label = name.replace("(", "\n(")
    axes[1, 0].plot(100 * np.array(found), [label] * len(found), markers[name], color=colours[name], alpha=0.5)
    axes[1, 0].plot(100 * np.mean(found), label, "|", color="k", markersize=14)
axes[1, 0].tick_params("y", labelsize=8)
axes[1, 0].set(xlabel="test accuracy of the averaged model, %", title="accuracy (dots: seeds, bar: mean)")
axes[1, 1].set(xlabel="steps", title="consensus distance in training")
lab.save(figure, "gossip", args)

# %%
error = max(abs(measured[name] - predicted[name]) for name in courses if not uncertain[name])
errors = [abs(measured[name] - predicted[name]) / uncertain[name] for name in courses if uncertain[name]]
means = {name: 100 * np.mean(found) for name, found in accuracies.items()}
farthest = max(courses, key=lambda name: abs(means[name] - means["allreduce"]))
lab.conclude(
    args, "gossip",
    "on {ranks} ranks the measured contraction per step is that of the spectral gap up to {error:.4f} (ring: "
    "{measured[ring]:.4f}, predicted {predicted[ring]:.4f}); for graphs drawn again in each step up to {errors:.1f} "
    "standard errors, over {steps} steps. Over {seeds} seeds the all-reduced model has {reduced:.2f}% accuracy (spread "
    "{spread:.2f}); the averaged model of gossip differs from it by {difference:+.2f} points at most ({farthest}).",
    ranks=args.ranks, error=error, errors=max(errors, default=0.0), steps=DRAWS,
    seeds=len(SEEDS), reduced=means["allreduce"], spread=100 * np.ptp(accuracies["allreduce"]), farthest=farthest,
    difference=means[farthest] - means["allreduce"], accuracies=accuracies, predicted=predicted, measured=measured,
    uncertain=uncertain,
)  # fmt: skip
