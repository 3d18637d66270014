"""`pycollective draw`: compiled schedules as pictures (see schedule/drawing.py and schedule/graph.py)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pycollective.cli import outputs, selection
from pycollective.cli.commands import refusing
from pycollective.errors import Error, TopologyError
from pycollective.schedule import Placement, Schedule, compile, label


@dataclass(frozen=True)
class Picture:
    """What is drawn besides topologies, as it was typed."""

    ranks: str
    collective: str
    root: int
    small: bool
    graph: bool


def draw(positional: Sequence[str] | None, named: Sequence[str] | None, out: Path, picture: Picture) -> int:
    """The command: draw collectives of topologies, compiled for window arrays. Exits with 2 for a wrong request."""
    with refusing("plot"):
        instances = selection.topologies(positional, named)
        if not instances:
            raise ValueError("name a topology, FILE.py:NAME or FILE.py")
        counts, wanted = selection.ranks(picture.ranks), selection.collectives(picture.collective)
        selection.having(instances, wanted)
        outputs.check(out)
        cases = list(itertools.product(instances, wanted, counts))
        labels = [
            "-".join([label(instance), *[name] * (len(wanted) > 1), *[str(count)] * (len(counts) > 1)])
            for instance, name, count in cases
        ]
        for (instance, name, count), path in zip(cases, outputs.pictures(out, labels), strict=True):
            write(_compiled(instance, name, count, picture.root, picture.small), path, picture.graph)
            print(path)
    return 0


def _compiled(instance: object, collective: str, ranks: int, root: int, small: bool) -> Schedule:
    try:
        return compile(instance, collective, ranks, root, Placement.WINDOW, small)
    except (Error, ValueError):
        raise
    except Exception as error:  # a user's topology may raise anything
        where = selection.place(error)
        raise TopologyError(f"{label(instance)}: {type(error).__name__}: {error}{where}") from error


def write(schedule: Schedule, path: Path, graph: bool = False) -> None:
    """The picture of a schedule, into a file: over time, or who talks to whom."""
    from pycollective.schedule import drawing
    from pycollective.schedule import graph as graphs

    (graphs.draw if graph else drawing.draw)(schedule, path)
