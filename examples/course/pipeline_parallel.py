# %% [markdown]
# # A pipeline of stages
#
# A network is cut in S stages, one for each rank, and a batch in M micro-batches, so that the stages work at once.
# *GPipe* (Huang et al. 2018, https://arxiv.org/abs/1811.06965) runs all forward passes, then all backward ones; *1F1B*
# (Harlap et al. 2018, https://arxiv.org/abs/1806.03377) begins a backward pass as soon as it can, and keeps fewer
# activations. Both leave bubbles: `(S - 1) / (M + S - 1)` of the time. Change `MICRO_BATCHES` and run it again.

# %%
import time

import lab
import numpy as np

import pycollective as pc
from pycollective.schedule.drawing.style import PALETTE, ink_on

args = lab.start("Pipeline parallelism: GPipe and 1F1B, their bubbles, and the memory that they need.")
MICRO_BATCHES, STEPS = 8, 3 if args.quick else 20
FORWARD, BACKWARD = 0.004, 0.008  # seconds for a micro-batch, most of it a pause: there may be fewer cores than stages
ROWS, WIDTH, RATE = 16, 48, 0.2  # rows of a micro-batch; what travels is ROWS by WIDTH
data = lab.dataset(args)
x, y = data.train_x.reshape(len(data.train_x), -1).astype(np.float64), data.train_y

# %% [markdown]
# ## Two schedules: what a stage does, in order


# %%
def gpipe(stage, stages, micro_batches):
    return [(kind, i) for kind in "FB" for i in range(micro_batches)]


def one_forward_one_backward(stage, stages, micro_batches):
    ahead = min(stages - 1 - stage, micro_batches)  # forward passes before the first backward pass arrives
    pairs = [pair for i in range(micro_batches - ahead) for pair in (("F", ahead + i), ("B", i))]
    rest = [("B", i) for i in range(micro_batches - ahead, micro_batches)]
    return [("F", i) for i in range(ahead)] + pairs + rest


SCHEDULES = {"GPipe": gpipe, "1F1B": one_forward_one_backward}

# %% [markdown]
# ## A stage: one layer, `tanh(h W)`; the last has the loss too


# %%
class Stage:
    def __init__(self, number, stages):
        rows = x.shape[1] if number == 0 else WIDTH
        self.w = np.random.default_rng(number).normal(0, rows**-0.5, (rows, WIDTH))
        self.is_last = number == stages - 1
        self.stored, self.most, self.gradient, self.loss = {}, 0, np.zeros_like(self.w), 0.0

    def forward(self, i, h):
        output = np.tanh(h @ self.w)
        self.stored[i] = h, output
        self.most = max(self.most, len(self.stored))
        return output

    def backward(self, i, error, labels):
        h, output = self.stored.pop(i)
        if self.is_last:  # the mean cross-entropy of the first columns, as scores
            p = np.exp(3 * output[:, : data.classes])
            p /= p.sum(1, keepdims=True)
            self.loss -= np.log(p[np.arange(ROWS), labels]).mean() / MICRO_BATCHES
            error = np.zeros_like(output)
            error[:, : data.classes] = 3 * (p - np.eye(data.classes)[labels]) / (ROWS * MICRO_BATCHES)
        error = error * (1 - output**2)
        self.gradient += h.T @ error
        return error @ self.w.T

    def step(self):
        self.w -= RATE * self.gradient
        self.gradient[:], loss, self.loss = 0, self.loss, 0.0
        return loss


def micro_batches(step):
    return np.random.default_rng(step).integers(len(x), size=(MICRO_BATCHES, ROWS))


def alone(stages):
    layers, losses = [Stage(s, stages) for s in range(stages)], []
    for step in range(STEPS):
        for i, rows in enumerate(micro_batches(step)):
            h, error = x[rows], None
            for layer in layers:
                h = layer.forward(i, h)
            for layer in reversed(layers):
                error = layer.backward(i, error, y[rows])
        losses.append([layer.step() for layer in layers][-1])
    return losses


def pipeline(comm, schedule):
    """(losses, most micro-batches stored, for each step [(begin, end, kind, micro-batch)]) of this rank."""
    stage, last, losses, traces = Stage(comm.rank, comm.size), comm.size - 1, [], []
    for step in range(STEPS):
        parts, sent, trace = micro_batches(step), [], []
        comm.barrier()
        for kind, i in schedule(comm.rank, comm.size, MICRO_BATCHES):
            source, to = comm.rank + (-1 if kind == "F" else 1), comm.rank + (1 if kind == "F" else -1)
            arrived = comm.recv(np.empty((ROWS, WIDTH)), source) if 0 <= source <= last else x[parts[i]]
            begin = time.perf_counter()
            result = stage.forward(i, arrived) if kind == "F" else stage.backward(i, arrived, y[parts[i]])
            time.sleep(max(0, begin + (FORWARD if kind == "F" else BACKWARD) - time.perf_counter()))
            trace.append((begin, time.perf_counter(), kind, i))
            if 0 <= to <= last:
                sent.append(comm.isend(result, to))
        for handle in sent:
            handle.wait()
        losses.append(stage.step())
        traces.append(trace)
    return losses, stage.most, traces


# %%
runs, measured = [(stages, name) for stages in sorted({2, args.ranks} - {1}) for name in SCHEDULES], {}
figure, axes = lab.subplots(len(runs), 1, figsize=(8, 1.6 * len(runs) + 0.5), squeeze=False)
for place, (stages, name) in zip(axes[:, 0], lab.track(runs, "pipelines"), strict=True):
    results = pc.local_world(stages).run(lambda comm, schedule=SCHEDULES[name]: pipeline(comm, schedule))
    steps = zip(*(traces for _, _, traces in results), strict=True)  # the quickest step is drawn
    traces = min(steps, key=lambda step: max(t[-1][1] for t in step) - min(t[0][0] for t in step))
    begin, end = min(t[0][0] for t in traces), max(t[-1][1] for t in traces)
    busy = sum(b - a for trace in traces for a, b, _, _ in trace) / (stages * (end - begin))
    difference = np.abs(np.subtract(results[-1][0], alone(stages))).max()
    label, stored = f"{name}, {stages} stages", results[0][1]
    measured[label] = {"bubble": 1 - busy, "stored": stored, "difference": float(difference)}
    for rank, trace in enumerate(traces):
        for a, b, kind, i in trace:
            color, middle = PALETTE[0 if kind == "F" else 6], (a + b - 2 * begin) * 500
            place.barh(rank, (b - a) * 1000, left=(a - begin) * 1000, color=color, edgecolor="w")
            place.text(middle, rank, str(i), ha="center", va="center", color=ink_on(color), fontsize=8)
    place.set(yticks=range(stages), ylabel="stage", title=f"{label}: {1 - busy:.0%} bubbles, stage 0 stores {stored}")
    place.set_xlim(0, (end - begin) * 1000)
    place.invert_yaxis()
axes[-1, 0].set_xlabel("milliseconds")
keys = [axes[0, 0].bar(0, 0, color=color, label=label) for color, label in (("C0", "forward"), ("C6", "backward"))]
figure.legend(handles=keys, loc="outside lower center", ncols=2, title="passes, numbered by micro-batch")
lab.save(figure, "pipeline_parallel", args)

# %%
most = max(stages for stages, _ in runs)
theory = (most - 1) / (MICRO_BATCHES + most - 1)
lab.conclude(
    args,
    "pipeline_parallel",
    "with {stages} stages and {micro} micro-batches GPipe's bubbles are {gpipe[bubble]:.0%} of the time and 1F1B's "
    "{other[bubble]:.0%} (theory for both: {theory:.0%}); stage 0 stores {gpipe[stored]} and {other[stored]} "
    "micro-batches. The losses of all runs differ from the single process's by at most {difference:.1g}.",
    stages=most, micro=MICRO_BATCHES, gpipe=measured[f"GPipe, {most} stages"], other=measured[f"1F1B, {most} stages"],
    theory=theory, difference=max(run["difference"] for run in measured.values()), runs=measured,
)  # fmt: skip
