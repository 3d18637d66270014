"""`pycollective draw`: a compiled schedule as a picture.

On the left the ranks and who reads whom (the wider, the more of the message); on the right time: one lane a
rank, one mark a step, coloured by chunk, and a line from where the step's data came.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from pycollective.errors import Error
from pycollective.schedule import Placement, Schedule, Step, compile, info, label

FORMATS = (".png", ".svg", ".pdf")
_REDUCE, _COPY, _INK = "#c2410c", "#2563eb", "#1f2937"


def draw(where: str, out: Path, ranks: int, collective: str, root: int, small: bool) -> int:
    """The command: draw one collective of one topology into `out`; 2 when the request is wrong."""
    from pycollective.cli.verify import find

    try:
        found = find(where)
        if len(found) != 1:
            raise Error(f"{where} names {len(found)} topologies; add :NAME or draw one of them")
        if out.suffix not in FORMATS:
            raise Error(f"{out}: write one of {', '.join(FORMATS)}")
        figure = draw_schedule(found[0], ranks, collective, root, small)
    except (Error, OSError, SyntaxError) as error:
        print(f"✗ {error}", file=sys.stderr)
        return 2
    except ImportError as error:
        print(f"✗ {error}; drawing needs matplotlib: pip install 'pycollective[plot]'", file=sys.stderr)
        return 2
    figure.savefig(out)
    print(out)
    return 0


def draw_schedule(
    topology: object, size: int, collective: str = "allreduce", root: int = 0, small: bool = False
) -> Any:
    """A matplotlib Figure of one schedule, compiled for window arrays.

    Raises:
        TopologyError, ProgramError: as `compile`. ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    schedule = compile(topology, collective, size, root, Placement.WINDOW, small)
    times = step_times(schedule)
    last = max(max(lane, default=0) for lane in times)
    width = 5.2 + min(20.0, max(4.5, 0.42 * (last + 1)))
    figure = Figure(figsize=(width, max(4.2, 0.42 * size + 1.6)), dpi=150, layout="constrained")
    ring, lanes = figure.subplots(1, 2, width_ratios=[4.0, width - 5.0])
    _draw_graph(ring, schedule)
    _draw_lanes(lanes, schedule, times, last)
    variant = " (small messages)" if small else ""
    row = info(topology)
    figure.suptitle(f"{label(topology)} · {collective}{variant} · {size} ranks", fontweight="bold", color=_INK)
    figure.supxlabel(f"{row.doc}   {_traffic(schedule)}", fontsize=8, color=_INK)
    return figure


def step_times(schedule: Schedule) -> list[list[int]]:
    """When each step of each rank runs if every step takes one unit and waits only for what it must."""
    times: list[list[int]] = [[] for _ in schedule.ranks]
    waiting = True
    while waiting:  # every pass finishes at least one step, because a compiled schedule cannot deadlock
        waiting = False
        for rank, mine in enumerate(schedule.ranks):
            for step in mine.steps[len(times[rank]) :]:
                if any(len(times[wait.peer]) < wait.count for wait in step.waits):
                    waiting = True
                    break
                after = [times[wait.peer][wait.count - 1] for wait in step.waits if wait.count]
                times[rank].append(1 + max([*after, *times[rank][-1:]], default=-1))
    return times


def transfers(schedule: Schedule) -> Counter[tuple[int, int, bool]]:
    """(from rank, to rank, into a reduction) -> number of chunks that cross, reads and writes alike."""
    moved: Counter[tuple[int, int, bool]] = Counter()
    for rank, mine in enumerate(schedule.ranks):
        for step in mine.steps:
            for source in step.sources:
                if source.rank != rank:
                    moved[source.rank, rank, len(step.sources) > 1] += 1
            for target in step.targets:
                if target.rank != rank:
                    moved[rank, target.rank, False] += 1
    return moved


def _traffic(schedule: Schedule) -> str:
    moved = transfers(schedule)
    into = Counter[int]()
    for (_, to, _), count in moved.items():
        into[to] += count
    most = max(into.values(), default=0) / schedule.chunks
    steps = _count(max(len(rank.steps) for rank in schedule.ranks), "step")
    chunks = _count(schedule.chunks, "chunk")
    return f"[{chunks}, {steps}; the busiest rank receives {most:.3g} times the message]"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _draw_graph(axes: Any, schedule: Schedule) -> None:
    places, moved = _places(schedule), sorted(transfers(schedule).items())
    for (source, to, reduces), count in moved:
        axes.annotate(
            "",
            xy=places[to],
            xytext=places[source],
            arrowprops={
                "arrowstyle": "-|>",
                "color": _REDUCE if reduces else _COPY,
                "alpha": 0.75 if len(moved) <= 40 else 0.35,
                "linewidth": 0.8 + 2.0 * min(1.0, count / schedule.chunks),
                "shrinkA": 11,
                "shrinkB": 11,
                "connectionstyle": f"arc3,rad={0.12 if reduces else 0.24}",
            },
        )
    for rank, (x, y) in enumerate(places):
        axes.text(
            *(x, y, str(rank)),
            ha="center",
            va="center",
            color="white",
            fontsize=9,
            fontweight="bold",
            bbox={"boxstyle": "circle,pad=0.35", "facecolor": _INK, "edgecolor": "none"},
        )
    axes.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")
    axes.axis("off")
    axes.plot([], [], color=_REDUCE, label="read to reduce")
    axes.plot([], [], color=_COPY, label="copied")
    axes.legend(loc="lower center", ncols=2, frameon=False, fontsize=8, bbox_to_anchor=(0.5, -0.08))


def _places(schedule: Schedule) -> list[tuple[float, float]]:
    """Ranks on a circle, clockwise from the top; one that alone meets all others stands in the middle."""
    meets: list[set[int]] = [set() for _ in schedule.ranks]
    for one, other, _ in transfers(schedule):
        meets[one].add(other)
        meets[other].add(one)
    hubs = [rank for rank, others in enumerate(meets) if len(others) == schedule.size - 1]
    hub = hubs[0] if len(hubs) == 1 and schedule.size > 3 else None
    rim = [rank for rank in range(schedule.size) if rank != hub]
    places: list[tuple[float, float]] = [(0.0, 0.0)] * schedule.size
    for i, rank in enumerate(rim):
        angle = 2 * math.pi * i / len(rim)
        places[rank] = (math.sin(angle), math.cos(angle))
    return places


def _draw_lanes(axes: Any, schedule: Schedule, times: list[list[int]], last: int) -> None:
    colours = _colours(schedule.chunks)
    for rank, mine in enumerate(schedule.ranks):
        axes.axhline(rank, color="#e5e7eb", linewidth=1, zorder=0)
        for step, time in zip(mine.steps, times[rank], strict=True):
            _draw_step(axes, rank, time, step, colours[step.chunk])
    axes.set_yticks(range(schedule.size), [f"rank {rank}" for rank in range(schedule.size)], fontsize=8)
    axes.set_xlim(-0.8, last + 0.8)
    axes.set_ylim(schedule.size - 0.4, -0.6)
    axes.set_xlabel("time in steps    (filled: reduced from several, ring: copied; colour: chunk)", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_xticks(range(0, last + 1, 1 + last // 20))
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_step(axes: Any, rank: int, time: int, step: Step, colour: Any) -> None:
    """A mark in the rank's lane; lines lead in from the ranks that are read and out to those written."""
    line = {"color": colour, "linewidth": 0.9, "alpha": 0.8, "zorder": 1}
    for source in step.sources:
        if source.rank != rank:
            axes.plot([time - 0.75, time - 0.2], [source.rank, rank], **line)
    for target in step.targets:
        if target.rank != rank:
            axes.plot([time + 0.2, time + 0.6], [rank, target.rank], linestyle=":", **line)
    reduces = len(step.sources) > 1
    face = colour if reduces else "white"
    axes.plot(
        time,
        rank,
        "o",
        markersize=8,
        markerfacecolor=face,
        markeredgecolor=colour,
        markeredgewidth=2,
        zorder=3,
    )


def _colours(count: int) -> list[Any]:
    """A colour for each chunk: a palette while it lasts, then a cycle of hues."""
    from matplotlib import colormaps

    if count <= 10:
        return [colormaps["tab10"](i) for i in range(count)]
    return [colormaps["turbo"](0.05 + 0.9 * i / (count - 1)) for i in range(count)]
