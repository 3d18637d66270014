"""`pycollective draw`: compiled schedules as pictures (schedule/drawing/), or their data."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pycollective.cli import outputs, selection
from pycollective.cli.commands import refusing
from pycollective.errors import Error, TopologyError
from pycollective.schedule import Schedule, drawing, label
from pycollective.schedule.compiler.steps import IN, OUT, Source, Target
from pycollective.schedule.drawing import graph as graphs
from pycollective.schedule.drawing.compiled import compiled

DEFAULT = Path("topology.png")


@dataclass(frozen=True)
class Picture:
    """What to draw besides topologies, as typed."""

    ranks: str
    collective: str
    root: int
    small: bool
    graph: bool
    hosts: int | None


def draw(
    positional: Sequence[str] | None,
    named: Sequence[str] | None,
    picture: Picture,
    json: Path | None,
    plot: Path | None,
) -> int:
    """The command: draw collectives of topologies. Exits with 2 on invalid requests.

    Args:
        positional, named: the topologies.
        picture: further options.
        json: destination of the data.
        plot: the picture; None: DEFAULT, or no picture if there is `json`.
    """
    plot = plot or (None if json else DEFAULT)
    with refusing("plot" if plot else ""):
        instances = selection.topologies(positional, named)
        if not instances:
            raise ValueError("name a topology, FILE.py:NAME or FILE.py")
        counts, wanted = selection.ranks(picture.ranks), selection.collectives(picture.collective)
        selection.having(instances, wanted)
        outputs.check(plot, json)
        cases = list(itertools.product(instances, wanted, counts))
        labels = [
            "-".join([label(instance), *[name] * (len(wanted) > 1), *[str(count)] * (len(counts) > 1)])
            for instance, name, count in cases
        ]
        files = outputs.pictures(plot, labels) if plot else [None] * len(labels)
        rows = []
        for (instance, name, count), file in zip(cases, files, strict=True):
            schedule = _compiled(instance, name, count, picture)
            rows += [describe(schedule)] if json else []
            if file is not None:
                figure = graphs.figure(schedule) if picture.graph else drawing.figure(schedule)
                figure.savefig(file)
                if json != outputs.STDOUT:
                    print(file)
        outputs.write_json(json, "pycollective-drawing/1", {"rows": rows})
    return 0


def describe(schedule: Schedule) -> dict[str, Any]:
    """The content of a schedule's pictures as plain data: every step with its time, and the traffic between ranks."""
    times = drawing.step_times(schedule)
    steps = [
        {
            "rank": rank,
            "step": number,
            "time": times[rank][number],
            "chunk": step.chunk,
            "sources": [_place(source) for source in step.sources],
            "targets": [_place(target) for target in step.targets],
            "waits": [{"rank": wait.peer, "steps": wait.count} for wait in step.waits],
            "line": step.line,
            **({"kind": step.kind} if schedule.hosts else {}),
        }
        for rank, mine in enumerate(schedule.ranks)
        for number, step in enumerate(mine.steps)
    ]
    return {
        "topology": schedule.topology,
        "collective": schedule.collective,
        "ranks": schedule.size,
        "root": schedule.root,
        "small": schedule.small,
        "chunks": schedule.chunks,
        **({"hosts": list(schedule.hosts)} if schedule.hosts else {}),
        "steps": steps,
        "traffic": [
            {"from": giver, "to": taker, "chunks": count}
            for (giver, taker), count in sorted(graphs.traffic(schedule).items())
        ],
    }


def _place(end: Source | Target) -> dict[str, Any]:
    """Places are the rank's buffers, "in" and "out", or the numbers of cells of its scratch."""
    return {"rank": end.rank, "place": {IN: "in", OUT: "out"}.get(end.place, end.place)}


def _compiled(instance: object, collective: str, ranks: int, picture: Picture) -> Schedule:
    try:
        return compiled(instance, collective, ranks, picture.root, picture.small, picture.hosts)
    except (Error, ValueError):
        raise
    except Exception as error:  # a user's topology may raise anything
        where = selection.place(error)
        raise TopologyError(f"{label(instance)}: {type(error).__name__}: {error}{where}") from error
