# %% [markdown]
# # A network that is cut in two
#
# Model parallelism: rank 0 holds the first layers, rank 1 the last ones. Activations travel forward, gradients back, by
# `send` and `recv`. The result is that of one process, bit for bit; but each rank waits for the other half of the time,
# which `pipeline_parallel.py` repairs. Change one line and run it again: `CUT`, or the `LAYERS`.

# %%
import time

import lab
import numpy as np

import pycollective as pc

args = lab.start("A network cut in two: activations and gradients by send and recv.", ranks=2)
STEPS, BATCH, RATE = (60, 64, 0.1) if args.quick else (400, 64, 0.1)
data = lab.dataset(args)
x, y = data.train_x.reshape(len(data.train_x), -1).astype(np.float64), data.train_y
test_x, test_y = data.test_x.reshape(len(data.test_x), -1), data.test_y
LAYERS = [x.shape[1], 256, 256, 256, data.classes]
CUT = 2  # rank 0 has the layers before this one

# %% [markdown]
# ## A layer, and the loss
#
# `h' = tanh(h W + b)`, the last layer without tanh; the loss is the mean cross-entropy.


# %%
class Layer:
    def __init__(self, number):
        rows, columns = LAYERS[number : number + 2]
        self.w = np.random.default_rng(number).normal(0, rows**-0.5, (rows, columns))
        self.b, self.last = np.zeros(columns), number == len(LAYERS) - 2

    def forward(self, h):
        self.input = h
        self.output = h @ self.w + self.b if self.last else np.tanh(h @ self.w + self.b)
        return self.output

    def backward(self, error):
        """The gradient with respect to the input, from that with respect to the output; the layer takes its step."""
        error = error if self.last else error * (1 - self.output**2)
        before = error @ self.w.T
        self.w -= RATE * (self.input.T @ error)
        self.b -= RATE * error.sum(0)
        return before


def loss_and_gradient(scores, y):
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return -np.log(p[np.arange(len(y)), y]).mean(), (p - np.eye(scores.shape[1])[y]) / len(y)


def batch(step):
    return np.random.default_rng(step).integers(len(x), size=BATCH)


# %% [markdown]
# ## One process, and two


# %%
def forward(layers, h):
    for layer in layers:
        h = layer.forward(h)
    return h


def backward(layers, error):
    for layer in reversed(layers):
        error = layer.backward(error)
    return error


def alone():
    layers, losses = [Layer(i) for i in range(len(LAYERS) - 1)], []
    for step in lab.track(range(STEPS), "one process"):
        rows = batch(step)
        loss, error = loss_and_gradient(forward(layers, x[rows]), y[rows])
        backward(layers, error)
        losses.append(loss)
    return losses, np.mean(forward(layers, test_x).argmax(1) == test_y)


def cut_in_two(comm):
    """The losses, known to rank 1, and for each step the times between computing and waiting."""
    first, last = [Layer(i) for i in range(CUT)], [Layer(i) for i in range(CUT, len(LAYERS) - 1)]
    losses, times, h = [], [], np.empty((BATCH, LAYERS[CUT]))  # what travels: the activations, and their gradients back
    for step in lab.track(range(STEPS), "two ranks") if comm.rank == 0 else range(STEPS):
        rows, busy = batch(step), [time.perf_counter()]
        if comm.rank == 0:
            activations = forward(first, x[rows])
            busy.append(time.perf_counter())
            comm.send(activations, 1)
            gradients = comm.recv(h, 1)
            busy.append(time.perf_counter())
            backward(first, gradients)
        elif comm.rank == 1:
            activations = comm.recv(h, 0)
            busy.append(time.perf_counter())
            loss, error = loss_and_gradient(forward(last, activations), y[rows])
            gradients = backward(last, error)
            busy.append(time.perf_counter())
            comm.send(gradients, 0)
            losses.append(loss)
        times.append([*busy, time.perf_counter()])
    return losses, np.array(times)


expected, accuracy = alone()
(_, zero), (losses, one) = pc.local_world(2).run(cut_in_two)
difference = float(np.abs(np.subtract(losses, expected)).max())

# %% [markdown]
# ## Who works when
#
# In the quickest step: rank 0 forward, then rank 1 forward and backward, then rank 0 backward. Never both.

# %%
quickest = np.argmin(zero[:, -1] - zero[:, 0])
zero, one = zero[quickest], one[quickest]
figure, axes = lab.subplots(1, 2, figsize=(9, 3.4))
axes[0].plot(expected, label="one process", linewidth=3, color="lightgrey")
axes[0].plot(losses, label="cut in two", linewidth=0.8, linestyle="-")
axes[0].set(xlabel="step", ylabel="loss", yscale="log")
lab.legend(axes[0])
work = {0: [(zero[0], zero[1]), (zero[2], zero[3])], 1: [(one[1], one[2])]}
labels = {0: ("forward", "backward"), 1: ("forward,\nbackward",)}
for rank, parts in work.items():
    bars = [((begin - zero[0]) * 1000, (end - begin) * 1000) for begin, end in parts]
    axes[1].broken_barh(bars, (rank - 0.4, 0.8), color=f"C{rank}")
    for (begin, length), what in zip(bars, labels[rank], strict=True):
        axes[1].text(begin + length / 2, rank, what, ha="center", va="center", color="white", fontsize=9)
axes[1].set(xlabel="milliseconds of the quickest step", yticks=[0, 1], yticklabels=["rank 0", "rank 1"])
axes[1].invert_yaxis()
lab.save(figure, "model_parallel", args)

# %%
busy = [sum(end - begin for begin, end in parts) / (max(zero[-1], one[-1]) - zero[0]) for parts in work.values()]
lab.conclude(
    args,
    "model_parallel",
    "{steps} steps of a network cut in two after layer {cut}: the losses differ from the single process's by at most "
    "{difference:.1g}; test accuracy {accuracy:.1%}. In the quickest step rank 0 computed {busy[0]:.0%} of the time, "
    "rank 1 {busy[1]:.0%}: the speed of {together:.2f} ranks.",
    steps=STEPS, cut=CUT, difference=difference, accuracy=accuracy, busy=busy, together=sum(busy),
)  # fmt: skip
