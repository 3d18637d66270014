"""`pycollective draw`: compiled schedules as pictures (schedule/drawing/), or their data."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any

import typer

from pycollective.cli import outputs, selection
from pycollective.cli.commands import refusing
from pycollective.cli.options import Collective, Json, Positional, Ranks, Root, Topology
from pycollective.errors import Error, TopologyError
from pycollective.schedule import Schedule, drawing, label
from pycollective.schedule.compiler.steps import IN, OUT, Source, Target
from pycollective.schedule.drawing import graph as graphs
from pycollective.schedule.drawing.compiled import compiled

DEFAULT = Path("topology.png")


def draw(
    topology: Positional = None,
    named: Topology = None,
    ranks: Ranks = "8",
    collective: Collective = "allreduce",
    root: Root = 0,
    small: Annotated[bool, typer.Option("--small", help="the variant for small messages")] = False,
    graph: Annotated[bool, typer.Option("--graph", help="only the communication graph, without time")] = False,
    hosts: Annotated[
        int | None,
        typer.Option(help="number of hosts, with equal shares of the ranks", show_default="1; 2 if it looks at hosts"),
    ] = None,
    mix: Annotated[
        list[str] | None,
        typer.Option(
            "--mix",
            metavar="GRAPH",
            help="instead of a topology: a graph of neighbours for gossip, as one_peer or 'random_pairs(seed=3)'",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="of --mix: number of steps")] = 1,
    json: Json = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            "--out",
            metavar="FILE",
            help="a .png, .svg or .pdf; the stem if there are several",
            show_default="topology.png or graph.png; none with --json",
        ),
    ] = None,
) -> int:
    """Draw the data movement between ranks, step by step.

    --json: every step with its time, chunk, sources, targets and waits, and the number of chunks between ranks; with
    --mix the weights of all ranks and the spectral gap.
    """
    if mix:
        from pycollective.cli import draw_mix

        with refusing():
            if topology or named:
                raise ValueError("--mix draws graphs of neighbours: name no topology")
        return draw_mix.draw(mix, ranks, steps, json, plot)
    plot = plot or (None if json else DEFAULT)
    with refusing("matplotlib" if plot else ""):
        instances = selection.topologies(topology, named)
        if not instances:
            raise ValueError("name a topology, FILE.py:NAME or FILE.py")
        counts, wanted = selection.ranks(ranks), selection.collectives(collective)
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
            schedule = _compiled(instance, name, count, root, small, hosts)
            rows += [describe(schedule)] if json else []
            if file is not None:
                figure = graphs.figure(schedule) if graph else drawing.figure(schedule)
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


def _compiled(instance: Any, collective: str, ranks: int, root: int, small: bool, hosts: int | None) -> Schedule:
    try:
        return compiled(instance, collective, ranks, root, small, hosts)
    except (Error, ValueError):
        raise
    except Exception as error:  # a user's topology may raise anything
        where = selection.place(error)
        raise TopologyError(f"{label(instance)}: {type(error).__name__}: {error}{where}") from error
