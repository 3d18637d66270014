# %% [markdown]
# # From one core to several ranks
#
# A serial training script becomes a distributed one by a few lines, which are marked `# hvd` in `lab2_torch.py` and
# `lab2_keras.py`, and `# pc` in `lab2_numpy.py`; beside each is its serial version. Here we look at the difference, run
# them, and then break the rules on purpose. Change one line of `lab2_torch.py` (the rate, the broadcast, the sampler)
# and run this again.

# %%
import difflib
import importlib.util
import json
import os
import re
import tempfile
from pathlib import Path

import lab
import numpy as np

import pycollective as pc
from pycollective.optim import sample_rows

args = lab.start(
    "A serial script and the same on several ranks, for NumPy, torch and Keras.", quick_ranks=2, torch=True
)
EPOCHS, SEEDS = (2, 1) if args.quick else (20, 3)
keras = importlib.util.find_spec("keras") and not args.quick  # which takes long to start
FRAMEWORKS = ["numpy", "torch", *(["keras"] if keras else [])]
RANKS = sorted({2, args.ranks} if args.quick else {1, 2, args.ranks})
DATA = [f"--data={args.data}", *([f"--folder={args.folder.resolve()}"] if args.folder else [])]
scratch = tempfile.TemporaryDirectory(prefix="lab2-")


def run(ranks, script, *words, **env):
    """(accuracy, images per second) that the script prints."""
    output = lab.launch(ranks, script, *DATA, *words, env=env)
    return tuple(map(float, re.findall(r"accuracy (\S+) .*images/s (\S+)", output)[0]))


# %% [markdown]
# ## What changes
#
# The lines of the distributed script that the serial one does not have.

# %%
added = {}
for name in FRAMEWORKS:
    serial, distributed = ((lab.HERE / f"lab2_{name}{kind}.py").read_text().splitlines() for kind in ("_serial", ""))
    lines = [line[2:] for line in difflib.ndiff(serial, distributed) if line.startswith("+ ") and "# " in line]
    added[name] = len(lines)
    print(f"--- {name}\n" + "\n".join(lines))

# %% [markdown]
# ## Throughput over the number of ranks
#
# Every rank takes batches of 32, so the batch of a step grows with the ranks, and the rate with it. WIDE computes more.
# All are run in turn several times, and the highest speed counts: other programs on the machine only make them slower.

# %%
WIDE = "torch, wide"
runs = [(name, ranks) for name in (*FRAMEWORKS, WIDE) for ranks in (0, *RANKS)]  # 0: the serial script
table = {}
run(1, "lab2_torch_serial.py", "--epochs", 1)  # reads torch from disk, which must not be timed
for name, ranks in lab.track(runs * SEEDS, "1, 2, more ranks"):
    script = f"lab2_{name.partition(',')[0]}{'' if ranks else '_serial'}.py"
    words = ["--epochs", 2, "--hidden", 4096] if name == WIDE else ["--epochs", EPOCHS]
    accuracy, speed = run(max(ranks, 1), script, *words)
    table[name, ranks] = accuracy, max(speed, table.get((name, ranks), (0, 0))[1])
    print(f"{name:11} {ranks or 'serial':6} accuracy {accuracy:.1%}  {speed:9,.0f} images/s", flush=True)

# %% [markdown]
# ## Two ways to divide the data
#
# Option 1: each epoch, the shuffled images are divided among the ranks. Option 2: every rank draws at random from all
# images, as many as there would be in its part. Then an epoch misses some images, and sees others more than once.

# %%
options = {1: [table["torch", 2][0]], 2: []}  # accuracies with each option: the first seed of option 1 has been run
for option, seed in lab.track([(option, s) for s in range(SEEDS) for option in (1, 2)][1:], "partition options"):
    options[option] += run(2, "lab2_torch.py", "--epochs", EPOCHS, "--partition", option, "--seed", seed)[:1]
parts = pc.local_world(args.ranks).run(lambda comm: sample_rows(10_000, comm, seed=0))
seen = len(np.unique(np.concatenate(parts))) / 10_000

# %% [markdown]
# ## Checkpoint and restart
#
# Rank 0 writes after each epoch. A run that is stopped and continues ends with the same weights, bit for bit.

# %%
whole, halves, trace = (Path(scratch.name, name) for name in ("whole.pt", "halves.pt", "timeline.json"))
run(2, "lab2_torch.py", "--epochs", EPOCHS, "--checkpoint", whole, HOROVOD_TIMELINE=str(trace))
for epochs in (EPOCHS // 2, EPOCHS):
    run(2, "lab2_torch.py", "--epochs", epochs, "--checkpoint", halves)
import torch  # noqa: E402

models = [torch.load(file)["model"] for file in (whole, halves)]
same = all(torch.equal(models[0][name], models[1][name]) for name in models[0])
print("after a restart the weights are", "bitwise equal" if same else "different")

# %% [markdown]
# ## Unequal numbers of batches
#
# One rank has a batch more than the other. Elsewhere that is a deadlock, here an error; `hvd.join()` cures it.

# %%
try:
    error = lab.launch(2, "lab2_unequal.py", timeout=60)
except RuntimeError as caught:
    error = re.findall(r"Error: (.*)", str(caught))[-1]
joined = lab.launch(2, "lab2_unequal.py", "--join", timeout=60).strip()
print(f"without join: {error}\nwith join:    {joined}")

# %% [markdown]
# ## The Timeline
#
# With HOROVOD_TIMELINE=FILE the ranks write what they do; https://ui.perfetto.dev shows the whole file. Here, a few
# steps of the uninterrupted run: a gradient waits until all ranks have it (grey), then it is reduced (blue).

# %%
events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
reduced = [event for event in events if event["name"] in ("NEGOTIATE_ALLREDUCE", "ALLREDUCE")]
rows = sorted({(e["pid"], e["args"]["operation"]) for e in reduced if "gradient" in e["args"]["operation"]})
rows = [(rank, name) for rank, name in rows if not name.endswith("present")]  # which gradients exist
steps = sorted(e["ts"] for e in reduced if (e["name"], e["pid"], e["args"]["operation"]) == ("ALLREDUCE", *rows[0]))
fastest = min(range(len(steps) - 4), key=lambda step: steps[step + 4] - steps[step])  # others were interrupted
half = (steps[fastest + 1] - steps[fastest]) / 2
begin, end = steps[fastest] - half, steps[fastest + 4] - half

figure, axes = lab.subplots(1, 2, figsize=(10, 3.5), width_ratios=[2, 3])
for name in (*FRAMEWORKS, WIDE):
    speeds = [table[name, ranks][1] / table[name, 0][1] for ranks in RANKS]
    axes[0].plot(RANKS, speeds, marker="o", label=name)
cores = len(os.sched_getaffinity(0))
axes[0].plot(RANKS, [min(ranks, cores) for ranks in RANKS], "k:", label=f"ideal, {cores} cores")
axes[0].set(xlabel="ranks", ylabel="images/s over the serial script's", xticks=RANKS, ylim=(0, None))
lab.legend(axes[0])
for event in reduced:
    row = event["pid"], event["args"]["operation"]
    if row in rows and begin <= event["ts"] < end:
        color = "lightgrey" if event["name"].startswith("NEGOTIATE") else "C0"
        axes[1].broken_barh([((event["ts"] - begin) / 1000, event["dur"] / 1000)], (rows.index(row), 0.8), color=color)
axes[1].set(xlabel="milliseconds", yticks=np.arange(len(rows)) + 0.4, title="four steps of two ranks")
axes[1].bar(0, 0, color="lightgrey", label="waits for others")
axes[1].bar(0, 0, color="C0", label="reduced")
lab.legend(axes[1])
axes[1].set_yticklabels([f"rank {rank}: {name.split('.', 2)[2]}" for rank, name in rows], fontsize=8)
lab.save(figure, "lab2_distributed", args)

# %%
lab.conclude(
    args, "lab2_distributed",
    "{lines} lines make the torch script distributed. On {ranks} ranks it processes {ratio:.2f} times as many images a "
    "second as the serial one, {wide:.2f} times with a wide network; accuracy {accuracy:.1%} ({serial:.1%} serial). "
    "Partition options 1 and 2: {one:.1%} and {two:.1%}; an epoch of the second sees {seen:.0%} of the images. "
    "Restarted from rank 0's checkpoint the weights are bitwise equal: {same}. Unequal batches: {error}; with join: "
    "{joined}.",
    lines=added["torch"], ranks=args.ranks, ratio=table["torch", args.ranks][1] / table["torch", 0][1],
    wide=table[WIDE, args.ranks][1] / table[WIDE, 0][1], accuracy=table["torch", args.ranks][0],
    serial=table["torch", 0][0], one=np.mean(options[1]), two=np.mean(options[2]), options=options, seen=seen,
    same=same, error=error, joined=joined,
    table={f"{name} {ranks or 'serial'}": figures for (name, ranks), figures in table.items()},
)  # fmt: skip
