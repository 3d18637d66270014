# %% [markdown]
# # Centralised against decentralised
#
# The same network, data and number of gradients, trained through a parameter server (the star, synchronous and
# asynchronous), by allreduce over a wheel, ring, tree or directly, and by gossip with one neighbour per step.
# What does each cost in traffic and time, and what does it do to the accuracy?
#
# Change one line and run it again: a topology in `ALLREDUCE`, the graph of gossip, or the bound on staleness.

# %%
import time
from collections import Counter

import lab
import network
import numpy as np

import pycollective as pc
from pycollective import graphs
from pycollective.optim import DistributedSGD, GossipSGD, ParameterServer
from pycollective.schedule import Placement, compile, simulate
from pycollective.schedule.drawing.graph import traffic

args = lab.start("Centralised against decentralised training: traffic, time and accuracy.", ranks=8)
ALLREDUCE = ["star", "wheel", "ring", "tree", "direct"]
GOSSIP = graphs.one_peer
STALENESS = 4
SEEDS = range(1 if args.quick else 3)
EPOCHS = 4 if args.quick else 12
HIDDEN, RATE, BATCH = 256, 0.1, 8  # 77 KB of parameters with digits: enough for the topologies' large variants
METHODS = ["star", "asynchronous star", *ALLREDUCE[1:], "gossip"]
n = args.ranks

data = lab.dataset(args)
train_x, test_x = network.flat(data.train_x), network.flat(data.test_x)
SIZE = sum(p.nbytes for p in network.parameters(train_x.shape[1], HIDDEN, 10, 0).values())

# %% [markdown]
# ## Traffic of one step
#
# Who sends how much to whom, in multiples of the parameters' bytes: for allreduce from the compiled programs, whose
# messages the simulator times on a network; for gossip from the graph, as each rank reads all of its neighbours'
# parameters; for the asynchronous star one push and one pull of each worker.


# %%
def links(method):
    """(from, to) -> the parameters' bytes that one step sends, as a factor."""
    if method == "gossip":
        period = GOSSIP.period_of(n)
        read = Counter((s, r) for t in range(period) for r in range(n) for s in GOSSIP(r, n, t) if s != r)
        return {pair: count / period for pair, count in read.items()}
    if method == "asynchronous star":
        return {pair: 1.0 for r in range(1, n) for pair in ((0, r), (r, 0))}
    schedule = compile(method, "allreduce", n, placement=Placement.WINDOW)
    return {pair: chunks / schedule.chunks for pair, chunks in traffic(schedule).items()}


table = {}
for method in METHODS:
    moved = links(method)
    ranks = [sum(share for pair, share in moved.items() if r in pair) for r in range(n)]  # sent and received
    table[method] = {"busiest_rank": max(ranks), "mean_rank": np.mean(ranks), "busiest_link": max(moved.values())}
    if method in ALLREDUCE:
        table[method]["simulated_ms"] = 1e3 * simulate(method, "allreduce", n, SIZE, small=False).seconds

# %% [markdown]
# ## Training
#
# Every method applies the mean of the ranks' gradients per step, or moves as far: the asynchronous server applies each
# worker's gradient by itself, with the rate divided by the number of ranks.


# %%
def optimizer(comm, method, params):
    """What to call before, with, and after the gradients, and the optimizer itself."""
    if method == "asynchronous star":
        server = ParameterServer(params, RATE / n, 0.9, STALENESS, comm)
        return server.pull, server.push, server.finish, server
    if method == "gossip":
        gossip = GossipSGD(params, GOSSIP, RATE, 0.9, comm=comm)
        return (lambda: None), gossip.step, gossip.average_parameters, gossip
    sgd = DistributedSGD(params, RATE, 0.9, comm=comm, topology=method)
    return (lambda: None), sgd.step, (lambda: None), sgd


def train(comm, method, seed):
    """The test accuracy, the seconds per step, and the staleness of gradients."""
    params = network.parameters(train_x.shape[1], HIDDEN, 10, seed)
    before, step, after, used = optimizer(comm, method, params)
    comm.barrier()
    begin, steps = time.perf_counter(), 0
    for rows in network.batches(comm, len(train_x), BATCH, EPOCHS, seed):
        before()
        step(network.gradients(params, train_x[rows], data.train_y[rows]))
        steps += 1
    after()
    seconds = (time.perf_counter() - begin) / steps
    return network.accuracy(params, test_x, data.test_y), seconds, getattr(used, "staleness_counts", {})


runs = {method: [] for method in METHODS}
order = [(seed, method) for seed in SEEDS for method in METHODS]  # methods alternate, so that all see the same machine
for seed, method in lab.track(order, "training", total=len(order)):
    runs[method].append(pc.local_world(n).run(lambda comm, of=(method, seed): train(comm, *of))[0])
for method, found in runs.items():
    table[method] |= {"percent": [100 * row[0] for row in found], "milliseconds": [1e3 * row[1] for row in found]}
    print(
        f"{method:18} {np.mean(table[method]['percent']):.1f}%, {np.mean(table[method]['milliseconds']):.1f} ms a step"
    )
staleness = sum((Counter(counts) for _, _, counts in runs["asynchronous star"]), Counter())

# %% [markdown]
# ## What happened

# %%
figure, axes = lab.subplots(2, 2, figsize=(10, 7))
places = np.arange(len(METHODS))
bars = {"busiest_rank": "busiest rank", "mean_rank": "mean of the ranks", "busiest_link": "busiest link, one direction"}
for shift, (key, label) in zip((-0.27, 0, 0.27), bars.items(), strict=True):
    axes[0, 0].bar(places + shift, [table[method][key] for method in METHODS], 0.27, label=label)
axes[0, 0].set(title="traffic per step / bytes of the parameters")
axes[0, 0].legend(loc="upper right")  # only the bars on the left are that high
for axis, key, title in ((axes[0, 1], "milliseconds", "measured: ms per step"), (axes[1, 0], "percent", "accuracy, %")):
    for place, values in enumerate(table[method][key] for method in METHODS):
        axis.plot([place] * len(values), values, "o", color="C0", alpha=0.5)
        axis.plot(place, np.mean(values), "_", color="k", markersize=16)
    axis.set(title=f"{title} (dots: seeds, bar: mean)")
for axis in (axes[0, 0], axes[0, 1], axes[1, 0]):
    axis.set_xticks(places, [method.replace(" ", "\n") for method in METHODS], fontsize=8)
axes[0, 1].set_ylim(0, 1.1 * max(max(row["milliseconds"]) for row in table.values()))
axes[1, 1].bar(list(staleness), list(staleness.values()))
axes[1, 1].set(title="asynchronous star: staleness of gradients", xlabel="gradients applied between pull and push")
axes[1, 1].set_xticks(range(0, max(staleness) + 1, 2))
lab.save(figure, "centralised", args)

# %%
means = {method: np.mean(table[method]["percent"]) for method in METHODS}
times = {method: np.mean(table[method]["milliseconds"]) for method in METHODS}
lab.conclude(
    args, "centralised",
    "on {n} ranks the hub of a star moves {star:.1f} times the parameters per step, a rank of a ring {ring:.1f}, of "
    "gossip {gossip:.1f}. Accuracy from {lowest:.2f}% ({worst}) to {highest:.2f}% ({best}); gradients at the "
    "asynchronous server were {stale:.1f} versions old on average. A step took from {fast:.1f} ms ({fastest}) to "
    "{slow:.1f} ms ({slowest}) here, with ranks as threads.",
    n=n, star=table["star"]["busiest_rank"], ring=table["ring"]["busiest_rank"], gossip=table["gossip"]["busiest_rank"],
    worst=min(means, key=means.get), best=max(means, key=means.get), lowest=min(means.values()),
    highest=max(means.values()), stale=sum(age * count for age, count in staleness.items()) / staleness.total(),
    fastest=min(times, key=times.get), fast=min(times.values()), slowest=max(times, key=times.get),
    slow=max(times.values()), table=table, staleness=dict(staleness),
)  # fmt: skip
