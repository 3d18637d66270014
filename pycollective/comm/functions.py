"""The functions of the package that work on the default communicator: `pycollective.allreduce(x)` and the others.

Each is looked up in `world()` when it is called. A function may be imported, and its help be read, before `init`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pycollective.comm.communicator import Communicator
from pycollective.comm.world import world

NUMBERS = {
    "rank": "This process's position among the ranks, from 0.",
    "size": "The number of ranks.",
    "local_rank": "The position among the ranks of this host, from 0.",
    "local_size": "The number of ranks of this host.",
    "cross_rank": "The position among the ranks with this local_rank, one a host, from 0.",
    "cross_size": "The number of ranks with this local_rank: of hosts, where each has as many ranks.",
}
"""Attributes of a communicator that are functions here."""


def function(name: str) -> Callable[..., Any]:
    """The function of this name: a method of the default communicator, or one of NUMBERS."""
    return _number(name) if name in NUMBERS else _method(name)


def _method(name: str) -> Callable[..., Any]:
    method = getattr(Communicator, name)

    def call(*args: Any, **options: Any) -> Any:
        return getattr(world(), name)(*args, **options)

    signature = inspect.signature(method)
    own = signature.replace(parameters=[p for p in signature.parameters.values() if p.name != "self"])
    return _named(call, name, own, f"{method.__doc__}\n\nOf the default communicator, which `init` makes.")


def _number(name: str) -> Callable[..., Any]:
    def call() -> int:
        return int(getattr(world(), name))

    return _named(call, name, inspect.Signature(return_annotation=int), NUMBERS[name])


def _named(call: Any, name: str, signature: inspect.Signature, documentation: str) -> Callable[..., Any]:
    call.__name__ = call.__qualname__ = name
    call.__module__ = "pycollective"
    call.__signature__ = signature
    call.__doc__ = documentation
    named: Callable[..., Any] = call
    return named
