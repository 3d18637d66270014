"""Consistency between ranks: broadcast of the root's object, and comparison of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective.comm.world import given_or_world
from pycollective.errors import MismatchError

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator


def broadcast_object(value: Any, root: int = 0, comm: Communicator | None = None) -> Any:
    """Collective: every rank gets the root's `value` through pickle; the root gets `value` itself.

    Args:
        value: any object that can be pickled; ignored on the other ranks.
        root: the rank whose value is broadcast.
        comm: the communicator, by default that of `pycollective.init`.

    Raises:
        TypeError, ValueError: root is not a rank, or comm not a communicator.
        Exception: pickle's error for the root's value, on every rank.
    """
    return given_or_world(comm).broadcast_object(value, root)


def require_same(text: str, comm: Communicator) -> None:
    """Collective: raise MismatchError on every rank unless all describe their parameters by the same text."""
    texts = comm.allgatherv(np.frombuffer(f"{text}\0".encode(), np.uint8)).tobytes().decode().split("\0")
    for rank, other in enumerate(texts[: comm.size]):
        if other != texts[0]:
            pairs = zip([*texts[0].splitlines(), "nothing"], [*other.splitlines(), "nothing"], strict=False)
            first, second = next((a, b) for a, b in pairs if a != b)
            raise MismatchError(f"parameters differ: rank 0 has {first}, rank {rank} has {second}")
