"""Lab 2: what happens in one iteration of data-parallel training, drawn from the clocks of two ranks.

    python examples/course/lab2_iteration.py

Every rank (1) loads a batch of its own, and computes (2) the loss in the forward pass and (3) the gradients in the
backward pass, those of the last layer first. When a layer's gradients are ready, (4) the ranks negotiate: they wait
until all have them. When the engine is done with earlier ones, (5) an allreduce averages them over the ranks; gradients
that wait at the same time are fused into one. With all averages, (6) the optimizer changes the weights: by the same
amount on every rank, so that they stay equal.

This script times 1, 2, 3 and 6; 4 and 5 are in the Timeline (HOROVOD_TIMELINE=FILE), where the engine of each rank
records what it does. It states its start as a time since the epoch, so that both can be put in one picture.

Published: Sergeev and Del Balso 2018, https://arxiv.org/abs/1802.05799, describe fusion and the Timeline; Li et al.
2020, https://arxiv.org/abs/2006.15704, how reductions overlap with the backward pass in torch.

Change one line: with OVERLAP = False, and no core to spare, all gradients are reduced after the backward pass; with a
larger ROWS there is more to compute, for gradients of the same size.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import time_ns

import lab
from data import load

from pycollective.schedule.drawing.style import INK

WIDTHS = (768, 768, 768, 128)  # neurons of the hidden layers
LAYERS = range(1, len(WIDTHS) + 2)
ROWS = 64  # of a batch, on each rank
OVERLAP = True
WARM_UP = 5  # iterations at the start that are not shown: memory is allocated in them
WAIT, FUSED = "wait for the averages", "5 allreduce (joined: fused)"
COMPUTING = {"1 load a batch": "C6", "2 forward": "C7", "3 backward": "C0", WAIT: "white", "6 optimizer": "C2"}
REDUCING = {"4 negotiation": "lightgrey", FUSED: "C1"}  # of each layer's gradients
EVENTS = {"NEGOTIATE_ALLREDUCE": "4 negotiation", "ALLREDUCE": FUSED}  # their names in the Timeline


def train(folder: str, iterations: str, name: str, files: str = "") -> None:
    """What each rank does: train, and write down when each stage began, and when each layer's gradients were ready."""
    import torch
    from torch import nn

    import pycollective.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    data = load(name, Path(files) if files else None)
    x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
    model, layers, ready = nn.Sequential(), [], {}
    for number, pair in zip(LAYERS, pairwise((x[0].numel(), *WIDTHS, data.classes)), strict=True):
        layers.append(nn.Linear(*pair))
        model.add_module(f"layer{number}", layers[-1])
        model.add_module(f"relu{number}", nn.ReLU() if number < len(LAYERS) else nn.Identity())
        for p in layers[-1].parameters():  # before the optimizer's own hooks, which submit the gradients
            p.register_post_accumulate_grad_hook(lambda _, number=number: ready.update({number: time_ns()}))
    # Where all cores compute, single gradients would be submitted after backward, as that is faster. A group, here of
    # a layer's weights and biases, is submitted as soon as it is complete.
    groups = [list(layer.parameters()) for layer in layers] if OVERLAP else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), groups=groups)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    random, found = torch.Generator().manual_seed(hvd.rank()), []
    for _ in range(int(iterations)):
        times = [time_ns()]
        rows = torch.randint(len(x), (ROWS,), generator=random)
        shifts = torch.randint(-1, 2, (ROWS, 2), generator=random).tolist()
        batch = torch.stack([x[row].roll(shift, (0, 1)) for row, shift in zip(rows, shifts, strict=True)]).flatten(1)
        times.append(time_ns())
        loss = nn.functional.cross_entropy(model(batch), y[rows])
        times.append(time_ns())
        loss.backward()
        times.append(time_ns())
        optimizer.synchronize()  # otherwise a part of step(); here it is timed by itself
        times.append(time_ns())
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()
        found.append(([*times, time_ns()], [ready[number] for number in LAYERS]))
    Path(folder, f"{hvd.rank()}.json").write_text(json.dumps(found))


def draw(ranks: list, spans: dict):
    """A figure with a row for what each rank computes, and one for the gradients of each of its layers."""
    from matplotlib.patches import Patch

    figure, axis = lab.subplots(figsize=(9, 1.4 + 2 * len(ranks)))
    labels, end = {}, max(times[-1] for times, _ in ranks)

    def bar(row: float, stage: str, left: float, right: float) -> None:
        colour, narrow = (COMPUTING | REDUCING)[stage], right - left < end / 50
        axis.barh(row, right - left, 0.9, left, color=colour, edgecolor=INK, linewidth=0.6)
        if stage != WAIT and (stage in COMPUTING or not narrow):
            ink = "white" if colour in ("C0", "C1", "C2") and not narrow else INK
            y = row - 0.8 * narrow  # a narrow bar has its number above it
            axis.text((left + right) / 2, y, stage[0], ha="center", va="center", color=ink, fontsize=9)

    for rank, (times, ready) in enumerate(ranks):
        top, before = rank * (len(LAYERS) + 2), None
        labels[top] = f"rank {rank} computes"
        for stage, limits in zip(COMPUTING, pairwise(times), strict=True):
            bar(top, stage, *limits)
        for row, layer in enumerate(reversed(LAYERS), top + 1):
            labels[row] = f"gradients of layer {layer}"
            axis.plot(ready[layer - 1], row, marker="D", color=INK, markersize=4)
            for stage in REDUCING:
                if span := spans.get((rank, layer, stage)):
                    bar(row, stage, *span)
            if span:
                axis.hlines(row, ready[layer - 1], span[0], color=INK, linewidth=0.8, zorder=0.8)
            if span and span == before:  # fused: join the bars
                axis.barh(row - 0.5, span[1] - span[0], 0.2, span[0], color="C1")
            before = span
    axis.set_yticks(list(labels), labels.values())
    title = f"one iteration on {len(ranks)} ranks, {ROWS} rows on each"
    axis.set(xlabel="milliseconds", xlim=(-end / 100, 1.01 * end), title=title)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    keys = [Patch(facecolor=look, edgecolor=INK, label=stage) for stage, look in sorted((COMPUTING | REDUCING).items())]
    keys += axis.plot([], [], "-D", color=INK, markersize=4, linewidth=0.8, label="gradients are ready, and wait")
    figure.legend(handles=keys, loc="outside lower center", ncols=4)
    return figure


def main() -> None:
    args = lab.start(__doc__, ranks=2, torch=True)
    args.ranks = max(2, args.ranks)  # one rank alone reduces nothing
    count = 20 if args.quick else 100
    words = (WARM_UP + count, args.data, *([args.folder.resolve()] if args.folder else []))
    with tempfile.TemporaryDirectory(prefix="lab2-") as folder:
        trace = Path(folder, "timeline.json")
        lab.launch(args.ranks, "lab2_iteration.py", "train", folder, *words, env={"HOROVOD_TIMELINE": str(trace)})
        events = json.loads(trace.read_text())["traceEvents"]
        found = [json.loads(Path(folder, f"{rank}.json").read_text())[WARM_UP:] for rank in range(args.ranks)]

    # The iteration that was disturbed least, in milliseconds since its beginning on the first rank.
    lasted = [max(one[i][0][-1] for one in found) - min(one[i][0][0] for one in found) for i in range(count)]
    found = [one[lasted.index(min(lasted))] for one in found]
    begin = min(times[0] for times, _ in found)
    ranks = [[[(time - begin) / 1e6 for time in times] for times in one] for one in found]
    started = next(e["args"]["start_time_since_epoch_in_micros"] for e in events if e["name"] == "trace_start")
    spans = {}  # (rank, layer, stage 4 or 5) -> its limits
    for event in events:
        layer = re.search(r"layer(\d+)\.weight", event.get("args", {}).get("operation", ""))  # biases go with them
        if layer and event["name"] in EVENTS:
            left, times = event["ts"] / 1e3 + started / 1e3 - begin / 1e6, ranks[event["pid"]][0]
            if times[0] <= left <= times[-1]:
                spans[event["pid"], int(layer[1]), EVENTS[event["name"]]] = left, left + event["dur"] / 1e3
    lab.save(draw(ranks, spans), "lab2_iteration", args)

    times, ready = ranks[0]
    reduced = {span for (rank, _, stage), span in spans.items() if rank == 0 and stage == FUSED}
    during = sum(max(0, min(right, times[3]) - left) for left, right in reduced)
    lab.conclude(
        args, "lab2_iteration",
        "The fastest of {count} iterations takes {fastest:.1f} ms (median {median:.1f}). On rank 0, loading takes "
        "{stages[0]:.1f}, forward {stages[1]:.1f}, backward {stages[2]:.1f}, waiting for the averages {stages[3]:.1f} "
        "and the optimizer {stages[4]:.1f} ms. The last layer's gradients are ready {earlier:.1f} ms before the "
        "first's. The number of allreduces for the {layers} layers is {allreduces}; {during:.0%} of their time is "
        "within the backward pass. Gradients wait up to {waited:.1f} ms until all ranks have them.",
        count=count, fastest=min(lasted) / 1e6, median=median(lasted) / 1e6, layers=len(LAYERS),
        allreduces=len(reduced), stages=[after - before for before, after in pairwise(times)],
        earlier=ready[0] - ready[-1], during=during / (sum(right - left for left, right in reduced) or 1),
        waited=max((right - left for (*_, stage), (left, right) in spans.items() if stage[0] == "4"), default=0),
    )  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:  # on a rank
        train(*sys.argv[2:])
    else:
        main()
