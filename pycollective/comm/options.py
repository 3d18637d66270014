"""Keyword arguments that the collectives share, for type checkers."""

from __future__ import annotations

from typing import Any, TypedDict

from pycollective.comm.operators import Op


class Options(TypedDict, total=False):
    """See Communicator."""

    op: str | Op
    topology: Any
    prescale: float | None
    postscale: float | None
    timeout: float | None
    name: str | None
    stream: Any
    max_channels: int | None


ALLOWED = frozenset(Options.__annotations__)


def waiting(options: Options) -> Options:
    """Of a call's options those that hold for the call in which its counts are exchanged, too."""
    return Options(timeout=options.get("timeout"), name=options.get("name"))
