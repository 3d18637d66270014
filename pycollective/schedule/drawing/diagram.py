"""A compiled schedule as a space-time diagram: how a topology moves data.

One lane per rank, time from left to right; every step takes one unit and starts as soon as its waits allow. An arrow
leads from where data was produced (or last stayed) to the step that reads it, or from the step that writes it to the
rank that receives it; of a message between hosts, from its send to its receive. Number and colour denote the chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any

from pycollective import checks
from pycollective.schedule.compiler.schedule import Schedule
from pycollective.schedule.compiler.steps import RECV, SEND, Step
from pycollective.schedule.drawing.style import INK, LANE, PAPER, chunk_colour, ink_on

__all__ = ["draw", "figure"]

_START = -0.9  # time of the initial contributions
_RESTED = 0.6  # start of an arrow before its reader, at most
_LANDING = 0.55  # arrival of a push after its step, as drawn


@dataclass(frozen=True, slots=True)
class Arrow:
    """A movement of data: from (time, rank) to (time, rank), of one chunk; `push` if the writer moves it."""

    begin: tuple[float, int]
    end: tuple[float, int]
    chunk: int
    push: bool


def draw(schedule: Schedule, path: str | PathLike[str]) -> None:
    """Write the diagram to a file. Made for 2 to 16 ranks.

    Args:
        schedule: the schedule to draw.
        path: the file, whose suffix (.png, .svg, .pdf) determines the format.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError, OSError: the path has an unknown suffix or cannot be written.
    """
    checks.path(path, "path")
    drawn = figure(schedule)
    try:
        drawn.savefig(path)
    except ValueError as error:
        raise ValueError(f"path: {error}") from None


def figure(schedule: Schedule) -> Any:
    """The diagram as a matplotlib Figure.

    Args:
        schedule: the schedule to draw.

    Raises:
        ImportError: matplotlib is not installed.
    """
    checks.instance(schedule, "schedule", Schedule, "a compiled Schedule")
    from matplotlib.figure import Figure

    times = step_times(schedule)
    last = max((time for lane in times for time in lane), default=0)
    picture = Figure(figsize=(2.6 + 0.62 * (last + 2), 1.9 + 0.46 * schedule.size), dpi=150, layout="constrained")
    axes = picture.subplots()
    _draw_lanes(axes, schedule, last)
    moving = arrows(schedule, times)
    for arrow in moving:
        _draw_arrow(axes, arrow, schedule.chunks, crowded=len(moving) > 60)
    for rank, mine in enumerate(schedule.ranks):
        for step, time in zip(mine.steps, times[rank], strict=True):
            _draw_step(axes, time, rank, step, schedule.chunks)
    picture.suptitle(schedule.heading, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    _draw_legend(picture, schedule)
    return picture


def step_times(schedule: Schedule) -> list[list[int]]:
    """The time of each step of each rank if every step takes one unit and only its waits delay it."""
    times: list[list[int]] = [[] for _ in schedule.ranks]
    moved = True
    while moved:  # terminates, as compiled schedules do not deadlock
        moved = False
        for rank, mine in enumerate(schedule.ranks):
            for step in mine.steps[len(times[rank]) :]:
                awaited = [(wait.peer, schedule.index(wait.count)) for wait in step.waits if wait.count]
                if any(len(times[peer]) <= index for peer, index in awaited):
                    break
                before = [times[peer][index] for peer, index in awaited]
                times[rank].append(1 + max(before + times[rank][-1:], default=-1))
                moved = True
    return times


def arrows(schedule: Schedule, times: list[list[int]]) -> list[Arrow]:
    """Every movement of data between ranks, in chronological order."""
    made: dict[tuple[int, int, int], float] = {}  # when the content of (rank, place, chunk) arrived
    moving: list[Arrow] = []
    steps = [
        (time, rank, step)
        for rank, mine in enumerate(schedule.ranks)
        for time, step in zip(times[rank], mine.steps, strict=True)
    ]
    for time, rank, step in sorted(steps, key=lambda entry: entry[:2]):
        if step.kind == SEND:
            continue
        for source in step.sources:
            if step.kind == RECV:
                sent = times[source.rank][schedule.index(source.place)]
                moving.append(Arrow((sent, source.rank), (time, rank), step.chunk, push=True))
            elif source.rank != rank:
                begin = made.get((source.rank, source.place, step.chunk), _START)
                begin = begin if begin >= time - 1 else time - _RESTED
                moving.append(Arrow((begin, source.rank), (time, rank), step.chunk, push=False))
        for target in step.targets:
            pushed = target.rank != rank
            made[target.rank, target.place, step.chunk] = time + _LANDING * pushed
            if pushed:
                moving.append(Arrow((time, rank), (time + _LANDING, target.rank), step.chunk, push=True))
    return moving


def _draw_lanes(axes: Any, schedule: Schedule, last: int) -> None:
    for rank in range(schedule.size):
        axes.plot([_START, last + 0.7], [rank, rank], color=LANE, linewidth=6, solid_capstyle="round", zorder=0)
    hosts = schedule.hosts or (0,) * schedule.size
    names = [f"host {host}: {rank}" if schedule.hosts else str(rank) for rank, host in enumerate(hosts)]
    for rank in range(1, schedule.size):
        if hosts[rank] != hosts[rank - 1]:
            axes.axhline(rank - 0.5, color=LANE, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    axes.set_yticks(range(schedule.size), names, fontsize=9, color=INK)
    axes.set_ylabel("rank", fontsize=9, color=INK)
    axes.set_xticks(range(last + 1), [str(time + 1) for time in range(last + 1)], fontsize=8, color=INK)
    axes.set_xlabel("time in steps", fontsize=9, color=INK)
    axes.set_xlim(_START - 0.25, last + 0.9)
    axes.set_ylim(schedule.size - 0.45, -0.55)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _draw_arrow(axes: Any, arrow: Arrow, chunks: int, crowded: bool) -> None:
    style = {
        "arrowstyle": "-|>,head_length=0.35,head_width=0.16",
        "color": chunk_colour(arrow.chunk, chunks),
        "linewidth": 0.7 if crowded else 1.1,
        "linestyle": (0, (3, 1.5)) if arrow.push else "-",
        "alpha": 0.55 if crowded else 0.85,
        "shrinkA": 0 if arrow.begin[0] == _START else 4.5,
        "shrinkB": 0 if arrow.push else 7,
        "joinstyle": "miter",
    }
    axes.annotate("", xy=arrow.end, xytext=arrow.begin, zorder=2, arrowprops=style)


def _draw_step(axes: Any, time: int, rank: int, step: Step, chunks: int) -> None:
    """The number of the chunk; filled if something is combined, open if it is copied, with a halo if it is complete."""
    colour = chunk_colour(step.chunk, chunks)
    if step.complete:
        axes.plot(time, rank, "o", markersize=16, color=colour, alpha=0.25, markeredgewidth=0, zorder=1)
    combines = len(step.sources) > 1
    style = {"markersize": 11, "markeredgecolor": colour, "markeredgewidth": 1.6}
    axes.plot(time, rank, "o", markerfacecolor=colour if combines else PAPER, zorder=3, **style)
    if chunks > 1:
        ink = ink_on(colour) if combines else INK
        axes.text(time, rank, str(step.chunk), ha="center", va="center_baseline", fontsize=6.5, color=ink, zorder=4)


def _draw_legend(picture: Any, schedule: Schedule) -> None:
    from matplotlib.lines import Line2D

    def mark(label: str, **style: Any) -> Any:
        return Line2D([], [], label=label, color=INK, **style)

    steps = [step for mine in schedule.ranks for step in mine.steps]
    pushes = any(target.rank != rank for rank, m in enumerate(schedule.ranks) for s in m.steps for target in s.targets)
    ring = {"linestyle": "", "marker": "o", "markersize": 7, "markeredgecolor": INK, "markeredgewidth": 1.6}
    entries = [mark(label="reduce", markerfacecolor=INK, **ring)] * any(len(step.sources) > 1 for step in steps)
    entries += [mark(label="copy", markerfacecolor=PAPER, **ring)] * any(len(step.sources) == 1 for step in steps)
    if any(step.complete for step in steps):
        halo = {"linestyle": "", "marker": "o", "markersize": 11, "alpha": 0.25, "markeredgewidth": 0}
        entries.append(mark("holds all contributions", **halo))
    entries.append(mark("read by a peer", linewidth=1.1))
    written = "sent to another host" if schedule.hosts else "written to a peer"
    entries += [mark(written, linewidth=1.1, linestyle=(0, (3, 1.5)))] * pushes
    if schedule.chunks > 1:
        entries.append(mark("number and colour: the chunk", linestyle=""))
    columns = max(2, int(picture.get_size_inches()[0] / 1.45))
    picture.legend(handles=entries, loc="outside lower left", ncols=columns, frameon=False, fontsize=7.5)
