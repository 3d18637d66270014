"""Keyword arguments that the collectives share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any, NoReturn, TypedDict

from pycollective.comm.arguments.operators import Op


class Calling(TypedDict, total=False):
    """Options of every call.

    Attributes:
        timeout: seconds to wait for the peers; default PYCOLLECTIVE_TIMEOUT.
        name: appears in this call's errors.
        stream: for GPU arrays: the stream in which the call is enqueued, a handle or a stream object of the array's
            library; default the library's current stream. Must be None for CPU arrays.
        max_channels: for GPU arrays: maximum number of thread blocks for the call; the same on all ranks.
    """

    timeout: float | None
    name: str | None
    stream: Any
    max_channels: int | None


class Moving(Calling, total=False):
    """Options of every collective of topologies.

    Attributes:
        topology: a name ("ring"), "name(parameter=value)", a topology class or instance; default `direct`, which
            reduces in rank order 0..n-1 for every size, so that results are bitwise reproducible.
        match: a text or an integer that the ranks compare: it distinguishes otherwise equal calls, as of several
            threads. Each value has plans of its own: use few.
    """

    topology: Any
    match: str | int | None


class Options(Moving, total=False):
    """Options of collectives that reduce.

    Attributes:
        op: sum, avg, prod, min, max, band, bor, bxor, land, lor, or `pycollective.op(function)`.
        prescale, postscale: factors on each contribution and on the result.
    """

    op: str | Op
    prescale: float | None
    postscale: float | None


DEFAULTS: dict[str, Any] = {
    "op": "sum",
    "topology": None,
    "prescale": None,
    "postscale": None,
    "timeout": None,
    "name": None,
    "match": None,
    "stream": None,
    "max_channels": None,
}
"""All options, in the order of signatures."""


def refuse(method: Callable[..., Any], keywords: Collection[str]) -> NoReturn:
    """Raise what is wrong with keyword arguments some of which the method does not take.

    Raises:
        TypeError: always.
    """
    wrong = sorted(set(keywords) - inspect.signature(method).parameters.keys())
    if unknown := [name for name in wrong if name not in DEFAULTS]:
        raise TypeError(f"unknown keyword arguments: {', '.join(unknown)}")
    if "topology" in wrong:
        raise TypeError("unknown keyword arguments: topology; a weighted collective takes a graph")
    raise TypeError("op, prescale and postscale are for collectives that reduce")
