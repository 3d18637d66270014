"""Keyword arguments that the collectives share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from pycollective.comm.arguments.operators import Op


class Moving(TypedDict, total=False):
    """Of every collective.

    Attributes:
        topology: a name ("ring"), "name(parameter=value)", a topology class or instance; default `direct`, which
            reduces in rank order 0..n-1 whatever the size, so that results have the same bits every time.
        timeout: seconds to wait for the peers; default PYCOLLECTIVE_TIMEOUT.
        name: named in this call's errors.
        stream: for GPU arrays: the stream that the call is put into, a handle or a stream object of the array's
            library; default the library's current stream. Must be None for CPU arrays.
        max_channels: for GPU arrays: most thread blocks that the call may take; the same on all ranks.
    """

    topology: Any
    timeout: float | None
    name: str | None
    stream: Any
    max_channels: int | None


class Options(Moving, total=False):
    """Of collectives that reduce.

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
    "stream": None,
    "max_channels": None,
}
"""Of all options, in the order in which signatures show them."""

ALLOWED = frozenset(DEFAULTS)


def waiting(options: Mapping[str, Any]) -> Moving:
    """Of a call's options those that hold for the call in which its counts are exchanged, too."""
    return Moving(timeout=options.get("timeout"), name=options.get("name"))
