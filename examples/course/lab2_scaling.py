"""Lab 2: images per second against the number of ranks, measured up to this machine's cores and predicted beyond.

    python examples/course/lab2_scaling.py

Weak scaling: every rank takes the same number of rows in a step, so that n ranks should process n times as many images
a second as one. The share of that which they reach is the parallel efficiency. A model of it:

    images/s(n) = n rows / (compute + max(0, allreduce(n) - overlap))

`compute` is the time of a step on one rank, measured. `overlap` is how much of the allreduce the backward pass hides:
between nothing and the time of the backward pass, measured too. On h hosts of m ranks, with a latency of a and b
seconds per byte between hosts, c and d within, the allreduce of S bytes of gradients takes

    ring         2 (n-1) a + 2 (n-1)/n S b                                     on more than one host
    two levels   2 (m-1) c + 2 (m-1)/m S d  +  2 log2(h) a + 2 (h-1)/h S/m b   within hosts, and by halving between

The simulator follows each message instead, of which a ring of 4,096 ranks has too many: so lines are formulas, and dots
the simulator's results. The tree is simulated for all numbers of ranks. Not modelled: contention, and slow ranks.

Published: Kurth et al. 2018, https://arxiv.org/abs/1810.01993, reach an efficiency of 90.7% on 27,360 GPUs. Horovod's
(Sergeev and Del Balso 2018, https://arxiv.org/abs/1802.05799) benchmarks on 512 GPUs and 25 Gbit/s between hosts,
https://horovod.readthedocs.io/en/stable/benchmarks.html: 90% with ResNet-101, 68% with VGG-16.

Change one line: the latency or the bandwidth of NETWORK, or ROWS: a longer step, with gradients of the same size.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from functools import cache
from itertools import pairwise
from statistics import quantiles

import lab
import numpy as np

from pycollective.schedule import Network, simulate

ROWS = 64  # of each rank
NETWORKS = {"small": (64, 128, 10), "large": (64, 960, 960, 10)}  # pixels, neurons of the hidden layers, classes
STEPS = {"small": 2000, "large": 300}  # timed
NETWORK = Network(latency=5e-6, bandwidth=100e9 / 8, ranks_per_node=8, node_latency=1e-6, node_bandwidth=100e9)
SIZES = [1 << power for power in range(13)]  # ranks
TOPOLOGIES = {  # name: its topology, up to how many ranks it is simulated, its curve
    "ring": ("ring", 64, {"color": "C1", "linestyle": "--"}),
    "two levels": ("hierarchical(outer='halving_doubling')", 64, {"color": "C2", "linestyle": "-."}),
    "tree": ("tree", SIZES[-1], {"color": "C3", "linestyle": ":"}),
}
PUBLISHED = {  # GPUs, efficiency in percent, marker
    "DeepLabv3+, Kurth et al.": (27_360, 90.7, "*"),
    "ResNet-101, Horovod": (512, 90, "^"),
    "VGG-16, Horovod": (512, 68, "v"),
}


def train(share: str) -> None:
    """What each rank does: time this share of STEPS with both networks. Rank 0 prints what a step takes."""
    import torch
    from torch import nn

    import pycollective.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    found = {}
    for name, sizes in NETWORKS.items():
        parts = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())]
        model = nn.Sequential(*parts[:-1])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        x, y = torch.rand(ROWS, sizes[0]), torch.randint(sizes[-1], (ROWS,))  # how long a step takes is the same
        steps, backward = [], []
        for _ in range(int(STEPS[name] * float(share))):
            begin = time.perf_counter()
            loss = nn.functional.cross_entropy(model(x), y)
            middle = time.perf_counter()
            loss.backward()
            backward.append(time.perf_counter() - middle)
            optimizer.step()
            optimizer.zero_grad()
            steps.append(time.perf_counter() - begin)
        # The fastest tenth: other programs on the machine only add to the times.
        found[name] = {"step": quantiles(steps, n=10)[0], "backward": quantiles(backward, n=10)[0]}
        found[name]["bytes"] = sum(4 * p.numel() for p in model.parameters())
    if hvd.rank() == 0:
        print(json.dumps(found))


@cache
def simulated(method: str, n: int, nbytes: int) -> float:
    """Seconds of an allreduce on n ranks."""
    return simulate(TOPOLOGIES[method][0], "allreduce", n, nbytes, NETWORK, small=False).seconds


def formula(method: str, n: int, nbytes: int) -> float:
    """Predict by formula; the tree has none."""
    if method == "tree":
        return simulated(method, n, nbytes)
    m = min(n, NETWORK.ranks_per_node)
    h = n // m
    (a, b), (c, d) = NETWORK.between_nodes, NETWORK.within_node
    within = 2 * (m - 1) * c + 2 * (m - 1) / m * nbytes * d
    if method == "ring":
        return 2 * (n - 1) * a + 2 * (n - 1) / n * nbytes * b if h > 1 else within
    return within + 2 * math.log2(h) * a + 2 * (h - 1) / h * nbytes / m * b


def efficiency(step: float, allreduce: list, overlap: float):
    """Percent of linear scaling, if a step takes so many seconds on one rank, and an allreduce so many on more."""
    return 100 * step / (step + np.maximum(0, np.array(allreduce) - overlap))


def draw(measured: dict, sizes: list):
    """The figure, and "method, network" -> its efficiencies if the backward pass hides what it can, and nothing."""
    figure, axes = lab.subplots(2, 2, figsize=(9, 7.4), sharex=True)
    ticks, found = [8**power for power in range(6)], {}
    for (name, one), (above, below) in zip(measured[1].items(), axes.T, strict=True):
        step, nbytes = one["step"], one["bytes"]
        linear = np.array(sizes) * ROWS / step
        above.plot(sizes, linear, color="grey", linewidth=1, linestyle="-", label="linear")
        for method, (_, most, look) in TOPOLOGIES.items():
            seconds = [formula(method, n, nbytes) for n in sizes]
            hidden, shown = efficiency(step, seconds, one["backward"]), efficiency(step, seconds, 0)
            above.plot(sizes, linear * hidden / 100, label=method, **look)
            below.plot(sizes, hidden, **look)
            below.plot(sizes, shown, linewidth=0.7, **look)
            few = [n for n in sizes if n <= most]
            dots = efficiency(step, [simulated(method, n, nbytes) for n in few], 0)
            below.plot(few, dots, **(look | {"linestyle": "", "marker": "o", "markersize": 4}))
            found[f"{method}, {name}"] = {"hidden": hidden.tolist(), "shown": shown.tolist()}
        ranks, steps = np.array([(n, each[name]["step"]) for n, each in measured.items()]).T
        above.plot(ranks, ranks * ROWS / steps, color="C0", linestyle="-", marker="s", label="measured")
        below.plot(ranks, 100 * step / steps, color="C0", linestyle="-", marker="s")
        title = f"{name} network: {nbytes // 4:,} parameters,\n{1e3 * step:.2g} ms for {ROWS} rows on one rank"
        above.set(xscale="log", yscale="log", ylabel="images per second", title=title)
        below.set(xlabel="ranks", ylabel="efficiency (%)", ylim=(0, 105))
        below.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        below.minorticks_off()
    for label, (gpus, percent, marker) in PUBLISHED.items():
        axes[1, 1].plot(gpus, percent, color="black", marker=marker, markersize=8, linestyle="", label=label)
    handles = [one for axis in axes[:, 1] for one in axis.get_legend_handles_labels()[0]]
    title = "thick lines: the backward pass hides what it can; thin lines, and dots by the simulator: it hides nothing"
    figure.legend(handles=handles, loc="outside lower center", ncols=4, title=title, title_fontsize=9)
    pairs = NETWORK.between_nodes, NETWORK.within_node
    between, within = (f"{1e6 * latency:g} µs and {8e-9 / beta:g} Gbit/s" for latency, beta in pairs)
    links = f"{NETWORK.ranks_per_node} ranks a host; a rank has {between} between hosts, {within} within"
    figure.suptitle(f"images/s = ranks × rows / (compute + max(0, allreduce − overlap))\n{links}", fontsize=10)
    return figure, found


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    args = lab.start(__doc__, ranks=cores, torch=True)
    sizes, share = (SIZES[::2], 0.1) if args.quick else (SIZES, 1)
    measured = {}  # ranks -> network -> seconds of a step and of its backward pass, bytes of gradients
    for n in lab.track([n for n in SIZES if n <= min(cores, args.ranks)], "measuring"):
        measured[n] = json.loads(lab.launch(n, "lab2_scaling.py", "train", share))
    todo = [(n, method) for n in sizes[1:] for method, (_, most, _) in TOPOLOGIES.items() if n <= most]
    errors = []
    for n, method in lab.track(todo, "simulating"):
        for nbytes in (one["bytes"] for one in measured[1].values()):
            errors.append(abs(formula(method, n, nbytes) / simulated(method, n, nbytes) - 1))
    figure, found = draw(measured, sizes)
    lab.save(figure, "lab2_scaling", args)

    lab.conclude(
        args, "lab2_scaling",
        "On {ranks} ranks of this machine the efficiency is {here[small]:.0f}% with the small network and "
        "{here[large]:.0f}% with the large one. Predicted for {most:,} ranks, if the backward pass hides what it can "
        "(and if it hides nothing): {table}. With the large network the ring stays above 90.7% up to {last:,} ranks. "
        "The formulas differ from the simulator by at most {error:.1%}.",
        ranks=max(measured), most=sizes[-1], error=max(errors), measured=measured, predicted=found,
        here={name: 100 * measured[1][name]["step"] / measured[max(measured)][name]["step"] for name in NETWORKS},
        table="; ".join(f"{key} {one['hidden'][-1]:.3g}% ({one['shown'][-1]:.3g}%)" for key, one in found.items()),
        last=max(n for n, percent in zip(sizes, found["ring, large"]["hidden"], strict=True) if percent > 90.7),
    )  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:  # on a rank
        train(*sys.argv[2:])
    else:
        main()
