"""The functions of the package that use the default communicator: `pycollective.allreduce(x)` and the others.

Each looks up `world()` when it is called, so a function may be imported, and its help read, before `init`.
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
    "local_rank": "The rank within this host, from 0.",
    "local_size": "The number of ranks on this host.",
    "cross_rank": "The position among the ranks with this local_rank, one per host, from 0.",
    "cross_size": "The number of ranks with this local_rank: the number of hosts, if each has equally many ranks.",
}
"""Attributes of a communicator that are functions of the package."""


def function(name: str) -> Callable[..., Any]:
    """The function with this name: a method of the default communicator, or one of NUMBERS."""
    return _number(name) if name in NUMBERS else _method(name)


def _method(name: str) -> Callable[..., Any]:
    method = getattr(Communicator, name)

    def call(*args: Any, **options: Any) -> Any:
        return getattr(world(), name)(*args, **options)

    signature = inspect.signature(method)
    own = signature.replace(parameters=[p for p in signature.parameters.values() if p.name != "self"])
    return _named(call, name, own, f"{method.__doc__}\n\nUses the default communicator, created by `init`.")


def _number(name: str) -> Callable[..., Any]:
    def call() -> int:
        return int(getattr(world(), name))

    documentation = (
        f"{NUMBERS[name]}\n\nUses the default communicator, created by `init`.\n\n"
        "Returns:\n    a number that does not change until `shutdown`.\n\n"
        "Raises:\n    CommunicatorError: `init` was not called."
    )
    return _named(call, name, inspect.Signature(return_annotation=int), documentation)


def _named(call: Any, name: str, signature: inspect.Signature, documentation: str) -> Callable[..., Any]:
    call.__name__ = call.__qualname__ = name
    call.__module__ = "pycollective"
    call.__signature__ = signature
    call.__doc__ = documentation
    named: Callable[..., Any] = call
    return named
