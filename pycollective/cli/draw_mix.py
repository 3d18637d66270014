"""`pycollective draw --mix`: graphs of neighbours as pictures, or their weights."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pycollective import graphs
from pycollective.cli import outputs, selection
from pycollective.cli.commands import choose, refusing
from pycollective.graphs import Graph
from pycollective.schedule.drawing.graph import neighbours_figure
from pycollective.schedule.language.registry import parameters_in

DEFAULT = Path("graph.png")
NAMES = [name for name in graphs.__all__ if name not in ("Graph", "from_networkx")]
MOST_STEPS = 64


def draw(mix: Sequence[str], ranks: str, steps: int, json: Path | None, plot: Path | None) -> int:
    """The command. Exits with 2 on invalid requests.

    Args:
        mix: the graphs, as typed.
        ranks: rank counts, as typed.
        steps: number of steps, from 0.
        json: destination of the data.
        plot: the picture; None: DEFAULT, or no picture if there is `json`.
    """
    plot = plot or (None if json else DEFAULT)
    with refusing("matplotlib" if plot else ""):
        if not 1 <= steps <= MOST_STEPS:
            raise ValueError(f"--steps is from 1 to {MOST_STEPS}, not {steps}")
        cases = list(itertools.product(map(named, mix), selection.ranks(ranks)))
        outputs.check(plot, json)
        counts = {size for _, size in cases}
        labels = ["-".join([graph.name, *[str(size)] * (len(counts) > 1)]) for graph, size in cases]
        files = outputs.pictures(plot, labels) if plot else [None] * len(cases)
        for (graph, size), file in zip(cases, files, strict=True):
            if file is not None:
                rows = [[graph(rank, size, step) for rank in range(size)] for step in range(steps)]
                gap = f"spectral gap {graph.spectral_gap(size):.4g}"
                neighbours_figure(rows, f"mix, {graph.name}, {size} ranks", gap).savefig(file)
                if json != outputs.STDOUT:
                    print(file)
        described = [describe(graph, size, steps) for graph, size in cases] if json else []
        outputs.write_json(json, "pycollective-graph/1", {"rows": described})
    return 0


def describe(graph: Graph, size: int, steps: int) -> dict[str, Any]:
    """What the pictures show as plain data: the weights of each step, and the spectral gap."""
    weights = [
        {"step": step, "rank": rank, "source": source, "weight": weight}
        for step in range(steps)
        for rank in range(size)
        for source, weight in graph(rank, size, step).items()
    ]
    return {"graph": graph.name, "ranks": size, "spectral_gap": graph.spectral_gap(size), "weights": weights}


def named(text: str) -> Graph:
    """The graph that a text denotes: "ring", "random_pairs", "random_regular(degree=4, seed=1)".

    Raises:
        ValueError: no such graph, or parameters that it does not have.
    """
    name = choose(text.partition("(")[0].strip(), NAMES, "graph")
    found, parameters = getattr(graphs, name), parameters_in(text)
    if isinstance(found, Graph):
        if parameters:
            raise ValueError(f"{name} has no parameters")
        return found
    try:
        made: Graph = found(**parameters)
    except TypeError as error:
        raise ValueError(f"{text[:80]!r}: {error}") from None
    return made
