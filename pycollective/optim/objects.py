"""What ranks must have alike: the root's object on all of them, and the same text on each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective.comm.world import given_or_world
from pycollective.errors import MismatchError

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator


def broadcast_object(value: Any, root: int = 0, comm: Communicator | None = None) -> Any:
    """Collective: every rank gets the root's `value` by way of pickle; the root gets `value` itself.

    Args:
        value: any object that pickle takes; on the other ranks it is not looked at.
        root: the rank whose value counts.
        comm: the communicator, by default that of `pycollective.init`.

    Raises:
        TypeError, ValueError: root is no rank, or comm no communicator.
        Exception: what pickle raises for the root's value, on every rank.
    """
    return given_or_world(comm).broadcast_object(value, root)


def require_same(text: str, what: str, comm: Communicator) -> None:
    """Collective: raise MismatchError on every rank unless all have the same text; names one that differs."""
    said = comm.allgatherv(np.frombuffer(f"{text}\0".encode(), np.uint8)).tobytes().decode().split("\0")
    for rank, other in enumerate(said[: comm.size]):
        if other != said[0]:
            pairs = zip([*said[0].splitlines(), "nothing"], [*other.splitlines(), "nothing"], strict=False)
            first, second = next((a, b) for a, b in pairs if a != b)
            raise MismatchError(f"{what} differ: rank 0 has {first}, rank {rank} has {second}")
