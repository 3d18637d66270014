"""Python objects between ranks: small things, beside the arrays."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective import checks
from pycollective.comm.world import given_or_world
from pycollective.errors import Error, MismatchError

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator


def broadcast_object(value: Any, root: int = 0, comm: Communicator | None = None) -> Any:
    """Collective: every rank gets the root's `value` by way of pickle; the root gets `value` itself.

    Args:
        value: any object that pickle takes; on the other ranks it is not looked at.
        root: the rank whose value counts.
        comm: the communicator, by default that of `pycollective.init`.

    Raises:
        TypeError, ValueError: root is no rank, or comm no communicator. What pickle raises for the root's value, on
        every rank.
    """
    comm = given_or_world(comm)
    return on_root(lambda: value, checks.integer(root, "root", 0, comm.size - 1), comm)


def on_root(work: Callable[[], Any], root: int, comm: Communicator) -> Any:
    """Collective: the root does the work, and every rank returns its result or raises its exception."""
    if comm.rank != root:
        result, failure = pickle.loads(_broadcast_bytes(b"", root, comm))
        if failure is not None:
            raise failure
        return result
    try:
        result = work()
        message = _message(result)
    except Exception as error:
        _broadcast_bytes(_pickled(error), root, comm)
        raise
    _broadcast_bytes(message, root, comm)
    return result


def _message(result: Any) -> bytes:
    try:
        return pickle.dumps((result, None))
    except (AttributeError, pickle.PicklingError) as error:  # of local functions and classes, by version of Python
        raise TypeError(f"the value cannot be sent, since pickle refuses it: {error}") from error


def _pickled(failure: Exception) -> bytes:
    """(None, failure); a failure that does not survive pickle is told in an Error."""
    try:
        message = pickle.dumps((None, failure))
        pickle.loads(message)
    except Exception:
        message = pickle.dumps((None, Error(f"{type(failure).__name__}: {failure}")))
    return message


def _broadcast_bytes(message: bytes, root: int, comm: Communicator) -> bytes:
    count = int(comm.broadcast(np.array([len(message)], np.int64), root)[0])
    content = np.frombuffer(message, np.uint8) if comm.rank == root else np.empty(count, np.uint8)
    sent: np.ndarray[Any, Any] = comm.broadcast(content, root)
    return sent.tobytes()


def require_same(text: str, what: str, comm: Communicator) -> None:
    """Collective: raise MismatchError on every rank unless all have the same text; names one that differs."""
    said = comm.allgatherv(np.frombuffer(f"{text}\0".encode(), np.uint8)).tobytes().decode().split("\0")
    for rank, other in enumerate(said[: comm.size]):
        if other != said[0]:
            pairs = zip([*said[0].splitlines(), "nothing"], [*other.splitlines(), "nothing"], strict=False)
            first, second = next((a, b) for a, b in pairs if a != b)
            raise MismatchError(f"{what} differ: rank 0 has {first}, rank {rank} has {second}")
