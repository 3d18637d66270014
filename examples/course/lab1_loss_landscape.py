# %% [markdown]
# # The loss surface of a network
#
# The loss along one or two random directions through a trained solution. A direction is *filter-normalised* (Li et al.
# 2017, https://arxiv.org/abs/1712.09913): the part that belongs to one neuron has the length of that neuron's weights,
# so that networks with large and with small weights can be compared. Change `DEPTH`, or the batches in `SOLUTIONS`.

# %%
from copy import deepcopy
from functools import partial

import lab
import numpy as np
import torch
from torch import nn
from torch.func import functional_call

import pycollective as pc

args = lab.start("Loss surfaces with and without skip connections, of small and large batches.")
torch.set_num_threads(1)
DEPTH, WIDTH = 12, 32
EPOCHS, POINTS, DIRECTIONS = (20, 13, 3) if args.quick else (40, 31, 8)
SOLUTIONS = {(16, 0.0): 0.02, (512, 0.0): 0.05, (16, 5e-3): 0.02, (512, 5e-3): 0.05}  # (batch, weight decay): rate

data = lab.dataset(args)
x, test_x = (torch.from_numpy(part - data.train_x.mean()).flatten(1)[:2000] for part in (data.train_x, data.test_x))
y, test_y = (torch.from_numpy(part[:2000]) for part in (data.train_y, data.test_y))

# %% [markdown]
# ## A deep network, and its training


# %%
class Network(nn.Module):
    def __init__(self, depth, skip):
        super().__init__()
        self.first, self.last = nn.Linear(x.shape[1], WIDTH), nn.Linear(WIDTH, data.classes)
        self.hidden = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.skip = skip
        for layer in self.hidden:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            layer.weight.data *= depth**-0.5 if skip else 1  # so that the sum of all layers does not grow with them

    def forward(self, h):
        h = torch.relu(self.first(h))
        for layer in self.hidden:
            h = h + torch.relu(layer(h)) if self.skip else torch.relu(layer(h))
        return self.last(h)


def train(network, batch, rate, decay, title):
    """The trained weights, and their error on the test images."""
    sgd = torch.optim.SGD(network.parameters(), rate, momentum=0.9, weight_decay=decay)
    random = torch.Generator().manual_seed(0)
    for _ in lab.track(range(EPOCHS), title):
        for rows in torch.randperm(len(x), generator=random).split(batch):
            sgd.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
            sgd.step()
    error = float((network(test_x).argmax(1) != test_y).float().mean())
    return {name: p.detach() for name, p in network.named_parameters()}, error


# %% [markdown]
# ## A direction, filter by filter
#
# `d_i <- d_i |w_i| / |d_i|` for the weights `w_i` into each neuron i; biases are left where they are.


# %%
def direction(weights, seed, normalise=True):
    random = torch.Generator().manual_seed(seed)
    d = {name: torch.randn(w.shape, generator=random) * (w.dim() > 1) for name, w in weights.items()}
    if not normalise:
        return d
    return {name: d[name] * w.norm(dim=-1, keepdim=True) / (d[name].norm(dim=-1, keepdim=True) + 1e-12)
            for name, w in weights.items()}  # fmt: skip


@torch.no_grad()
def measure(network, weights, *moves, on=(x, y)):
    """(loss, error) on images at the weights plus each (distance, direction)."""
    moved = {name: w + sum(t * d[name] for t, d in moves) for name, w in weights.items()}
    scores = functional_call(network, moved, on[0])
    return float(nn.functional.cross_entropy(scores, on[1])), float((scores.argmax(1) != on[1]).float().mean())


def loss(network, weights, *moves):
    """The training loss."""
    return measure(network, weights, *moves)[0]


def surface(network, weights, along, comm):
    """The loss on a grid over two directions: every rank computes some of the rows."""
    one, two, values = direction(weights, 1), direction(weights, 2), np.zeros((POINTS, POINTS))
    mine, network = range(comm.rank, POINTS, comm.size), deepcopy(network)  # ranks are threads, and loss() changes it
    for i in lab.track(mine, "loss surface") if comm.rank == 0 else mine:
        values[i] = [loss(network, weights, (along[i], one), (t, two)) for t in along]
    return comm.allreduce(values)  # a row is zero on all ranks but one


figure, axes = lab.subplots(3, 2, figsize=(9, 11))
along = np.linspace(-1, 1, POINTS)
guessing = np.log(data.classes)  # the loss of a network that gives all classes the same probability
better, errors = {}, {}
for place, skip in zip(axes[0], ("without", "with"), strict=True):
    torch.manual_seed(0)
    network, name = Network(DEPTH, skip == "with"), f"{DEPTH} layers {skip} skips"
    weights, errors[skip] = train(network, 32, 0.01, 5e-4, name)
    values = pc.local_world(args.ranks).run(partial(surface, network, weights, along))[0]
    better[skip] = np.mean(values < guessing)
    filled = place.contourf(along, along, np.log10(values), levels=np.linspace(-3.5, 3.5, 29), extend="both")
    place.contour(along, along, values, levels=[guessing], colors="white")
    place.set(title=f"{name}: error {errors[skip]:.1%}", xlabel="distance", ylabel="distance")
figure.colorbar(filled, ax=axes[0], label="log10 loss", ticks=range(-3, 4))

# %% [markdown]
# ## Small and large batches
#
# The width of a valley: the length of the line, averaged over directions, on which the loss is below 0.5.

# %%
line = np.linspace(-2, 2, 2 * POINTS - 1)
torch.manual_seed(1)
start = Network(4, True).state_dict()
width, raw, norm, found = [], [], [], []
for (batch, decay), rate in SOLUTIONS.items():
    network, name = Network(4, True), f"batch {batch}, decay {decay:g}"
    network.load_state_dict(start)
    weights, errors[name] = train(network, batch, rate, decay, name)
    found.append(weights)
    norm.append(float(sum((w**2).sum() for w in weights.values()) ** 0.5))
    labels = f"{name}: error {errors[name]:.1%}", f"{name}: norm of weights {norm[-1]:.1f}"
    for place, widths, reach, label in zip(axes[1], (width, raw), (line, line / 10), labels, strict=True):
        directions = [direction(weights, seed, normalise=widths is width) for seed in range(DIRECTIONS)]
        curves = np.array([[loss(network, weights, (t, d)) for t in reach] for d in directions])
        widths.append(np.mean(curves < 0.5) * (reach[-1] - reach[0]))
        place.plot(reach, curves.mean(0), label=label)
for place, title in zip(axes[1], ("filter-normalised directions", "directions as drawn"), strict=True):
    place.set(xlabel="distance", ylabel="loss", ylim=(0, 3), title=title)
    lab.legend(place, ncols=1)

# %% [markdown]
# ## From one minimum to the other
#
# The line `(1 - a) w_small + a w_large` from the small batch's solution through the large batch's, both without weight
# decay, as in Keskar et al. 2016 (https://arxiv.org/abs/1609.04836), who find the large batch's minimum sharper.

# %%
line = np.linspace(-1, 2, 4 * POINTS)
between = {name: found[1][name] - w for name, w in found[0].items()}
for label, on in (("training images", (x, y)), ("test images", (test_x, test_y))):
    measured = np.array([measure(network, found[0], (t, between), on=on) for t in line])
    for place, values in zip(axes[2], measured.T, strict=True):
        place.plot(line, values, label=label)
for place, title in zip(axes[2], ("loss", "error"), strict=True):
    place.set(xlabel="a: 0 is the small batch's solution, 1 the large batch's", ylabel=title)
    place.set_title(f"{title} on the line through both")
    for solution in (0, 1):
        place.axvline(solution, color="k", linewidth=0.8)
    lab.legend(place)
axes[2, 0].set_ylim(0, 3)
rise = [measure(network, found[0], (t, between))[0] for t in (-0.25, 1.25)]  # a quarter beyond either
lab.save(figure, "lab1_loss_landscape", args)

# %%
lab.conclude(
    args,
    "lab1_loss_landscape",
    "{depth} layers without skips do better than guessing on {better[without]:.0%} of the plane, with skips on "
    "{better[with]:.0%}; test errors {errors[without]:.1%} and {errors[with]:.1%}. The small batch's valley is "
    "{wide[0]:.2f} times as wide as the large batch's, with weight decay {wide[1]:.2f} times; in directions that are "
    "not normalised {raw[0]:.2f} and {raw[1]:.2f} times, with weights {norm[0]:.2f} and {norm[1]:.2f} times as long. "
    "On the line through both solutions, a quarter of their distance beyond them, the loss is {rise[0]:.2f} on the "
    "small batch's side and {rise[1]:.2f} on the large batch's.",
    depth=DEPTH, better=better, errors=errors, rise=rise,
    **{name: [v[0] / v[1], v[2] / v[3]] for name, v in (("wide", width), ("raw", raw), ("norm", norm))},
)  # fmt: skip
