"""Python objects between ranks: small things, beside the arrays."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective.comm.world import world
from pycollective.errors import MismatchError

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator


def broadcast_object(value: Any, root: int = 0, comm: Communicator | None = None) -> Any:
    """Collective: every rank gets the root's `value`, pickled and unpickled; the root gets its own back.

    Args:
        value: any object that pickle takes; on the other ranks it is not looked at.
        root: the rank whose value counts.
        comm: the communicator, by default that of `pycollective.init`.

    Raises:
        Whatever pickle says about the value, on every rank.
    """
    comm = comm or world()
    answer = _from_root(lambda: value, root, comm)
    return value if comm.rank == root else answer


def on_rank_0(work: Callable[[], Any], comm: Communicator) -> Any:
    """Collective: rank 0 works, and every rank returns its result or raises its exception."""
    return _from_root(work, 0, comm)


def _from_root(work: Callable[[], Any], root: int, comm: Communicator) -> Any:
    message = b""
    if comm.rank == root:
        try:
            message = pickle.dumps((work(), None))
        except Exception as error:
            message = pickle.dumps((None, error))
    count = int(comm.broadcast(np.array([len(message)], np.int64), root)[0])
    content = np.frombuffer(message, np.uint8) if comm.rank == root else np.empty(count, np.uint8)
    result, error = pickle.loads(comm.broadcast(content, root).tobytes())
    if error is not None:
        raise error
    return result


def require_same(text: str, what: str, comm: Communicator) -> None:
    """Collective: raise MismatchError on every rank unless all have the same text; names one that differs."""
    said = comm.allgatherv(np.frombuffer(f"{text}\0".encode(), np.uint8)).tobytes().decode().split("\0")
    for rank, other in enumerate(said[: comm.size]):
        if other != said[0]:
            pairs = zip([*said[0].splitlines(), "nothing"], [*other.splitlines(), "nothing"], strict=False)
            first, second = next((a, b) for a, b in pairs if a != b)
            raise MismatchError(f"{what} differ: rank 0 has {first}, rank {rank} has {second}")
