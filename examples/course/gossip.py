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

args = lab.start("Gossip: predicted and measured contraction, and training with neighbours only.", ranks=8)
GRAPHS = [graphs.ring, graphs.star, graphs.exponential, graphs.one_peer, graphs.complete]
GRAPHS += [graphs.random_pairs(seed=1), graphs.random_regular(degree=3, seed=1)]
SEEDS = range(2 if args.quick else 5)
EPOCHS = 12 if args.quick else 30
RATE, BATCH = 0.2, 8
STEPS = 200

# %% [markdown]
# ## Contraction
#
# With gradients of zero GossipSGD only mixes. The rate is that of the last steps before rounding ends it; a graph that
# is drawn again in each step gets a new x in each step, and the rate is the root of the mean squared ratio.


# %%
def disagreement(x):
    return np.linalg.norm(x - x.mean(0))


def mix(comm, graph, x):
    """This rank's row of x after each of STEPS steps."""
    params, zero, states = [x[comm.rank].copy()], [np.zeros(x.shape[-1])], []
    sgd = GossipSGD(params, graph, lr=0.0, comm=comm)
    for _ in range(STEPS):
        sgd.step(zero)
        states.append(params[0].copy())
    return states


def contraction(graph):
    """The disagreement from step 0 on, relative to the start, and the measured rate per step."""
    x = np.random.default_rng(0).normal(size=(args.ranks, 10))
    states = np.stack(pc.local_world(args.ranks).run(lambda comm: mix(comm, graph, x)), axis=1)
    course = np.array([disagreement(state) for state in (x, *states)]) / disagreement(x)
    if graph.period_of(args.ranks) is None:
        return course, np.sqrt(np.mean([fresh_ratio(graph, step) ** 2 for step in range(STEPS)]))
    period = graph.period_of(args.ranks)
    end = np.count_nonzero(course > 1e-12) // period * period
    middle = end // 2 // period * period
    return course, (course[end - period] / course[middle]) ** (1 / (end - period - middle)) if end > 3 * period else 0.0


def fresh_ratio(graph, step):
    x = np.random.default_rng((1, step)).normal(size=(args.ranks, 10))
    return disagreement(graph.matrix(args.ranks, step) @ x) / disagreement(x)


courses, predicted, measured = {}, {}, {}
for graph in lab.track(GRAPHS, "mixing", total=len(GRAPHS)):
    courses[graph.name], measured[graph.name] = contraction(graph)
    predicted[graph.name] = 1 - graph.spectral_gap(args.ranks)
    print(f"{graph.name:34} predicted {predicted[graph.name]:.4f}  measured {measured[graph.name]:.4f}")

# %% [markdown]
# ## Training
#
# A small network on the data, each rank with its share. At the end the ranks' models are averaged once.

# %%
data = lab.dataset(args)
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
figure, axes = lab.subplots(2, 2, figsize=(10, 7.5))
colours = {"allreduce": "k", **{name: f"C{i}" for i, name in enumerate(courses)}}
for name, course in courses.items():
    seen = course[:60] > 1e-13
    axes[0, 0].plot(np.flatnonzero(seen), course[:60][seen], ".", color=colours[name], markersize=4, label=name)
    if 0 < predicted[name] < 1:
        axes[0, 0].plot(predicted[name] ** np.arange(60.0), color=colours[name], linewidth=0.8)
axes[0, 0].set(yscale="log", ylim=(1e-13, 2), xlabel="steps", title="disagreement (dots), predicted slope (lines)")
axes[0, 1].plot([0, 1], [0, 1], "k-", linewidth=0.6)
for name in courses:
    axes[0, 1].plot(predicted[name], measured[name], "o", color=colours[name], label=name)
axes[0, 1].set(xlabel="predicted", ylabel="measured", title="contraction per step")
axes[0, 1].legend(fontsize=7)
for place, (name, found) in enumerate(accuracies.items()):
    axes[1, 0].plot(100 * np.array(found), [place] * len(found), "o", color=colours[name], alpha=0.5)
    axes[1, 0].plot(100 * np.mean(found), place, "|", color="k", markersize=14)
axes[1, 0].set_yticks(range(len(accuracies)), list(accuracies), fontsize=7)
axes[1, 0].set(xlabel="test accuracy of the averaged model, %", title=f"{len(SEEDS)} seeds (bar: mean)")
for name in courses:
    axes[1, 1].plot(10 * np.arange(len(distances[name])), distances[name], color=colours[name], linewidth=0.8)
axes[1, 1].set(xlabel="steps", title="consensus distance in training")
lab.save(figure, "gossip", args)

# %%
error = max(abs(measured[name] - predicted[name]) for name in courses)
means = {name: 100 * np.mean(found) for name, found in accuracies.items()}
farthest = max(courses, key=lambda name: abs(means[name] - means["allreduce"]))
lab.conclude(
    args,
    "gossip",
    "on {ranks} ranks the measured contraction per step is that of the spectral gap up to {error:.3f} (ring: "
    "{measured[ring]:.4f}, predicted {predicted[ring]:.4f}). Over {seeds} seeds the all-reduced model has "
    "{reduced:.2f}% accuracy (spread {spread:.2f}); the averaged model of gossip differs from it by {difference:+.2f} "
    "points at most ({farthest}).",
    ranks=args.ranks,
    error=error,
    seeds=len(SEEDS),
    reduced=means["allreduce"],
    spread=100 * np.ptp(accuracies["allreduce"]),
    difference=means[farthest] - means["allreduce"],
    farthest=farthest,
    accuracies=accuracies,
    predicted=predicted,
    measured=measured,
)
