"""Which matrix the graph of a call of `mix` stands for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pycollective import checks
from pycollective.comm.group import Group
from pycollective.graphs import Graph
from pycollective.schedule import mixing
from pycollective.schedule.language import registry


def read(
    graph: Any, step: int, group: Group, exchange: Callable[[bytes, str], Sequence[bytes]], normalised: Any
) -> Any:
    """The matrix of all ranks at a step, or a topology that has programs of `mix`.

    Args:
        exchange: a collective allgather of bytes, called if `graph` is this rank's mapping.

    Raises:
        TypeError, ValueError: as `mixing.evaluate`; or `normalised` is not True or False.
    """
    normalised = checks.flag(normalised, "normalised")
    if isinstance(graph, Mapping):
        row = mixing.row_of(graph, group.rank, group.size, normalised, "given")
        return mixing.exchange(row, exchange)
    if registry.is_registered(graph):
        return registry.get(graph)
    return evaluate(graph, group.size, step, normalised)


def evaluate(graph: Any, size: int, step: int, normalised: bool = True) -> mixing.MixingMatrix:
    """Evaluate like `mixing.evaluate`; remembered where `find` remembers it."""
    found = find(graph, size, step) if normalised else None
    return mixing.evaluate(graph, size, step, normalised) if found is None else found


def find(graph: Any, size: int, step: int) -> mixing.MixingMatrix | None:
    """The normalised matrix of a `Graph`, remembered, as its weights depend on its arguments only.

    None for any other function, which may return something else the next time.
    """
    if type(graph) is not Graph:
        return None
    period = graph.period_of(size)
    return _matrix(graph, size, step if period is None else step % period)


@functools.lru_cache(maxsize=1024)
def _matrix(graph: Graph, size: int, step: int) -> mixing.MixingMatrix:
    return mixing.evaluate(graph, size, step)
