"""Python objects between ranks, through pickle (cloudpickle if installed) and the engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycollective import checks
from pycollective.comm import objects
from pycollective.comm.bootstrap.rendezvous import name_ranks
from pycollective.engine import Item
from pycollective.hvd import basics, handles, operations
from pycollective.hvd.process_sets import ProcessSet, global_process_set

_NOTHING = np.empty(0, np.uint8)


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Collective: broadcast the root's object to all ranks, through pickle (cloudpickle if installed).

    Args:
        root_rank: the rank of the object, among all ranks.
        name: identifies the operation on all ranks; by default numbered.

    Raises:
        RuntimeError: it cannot be pickled; on the root, pickle's error.
    """
    root_rank = checks.integer(root_rank, "root_rank")
    label = handles.unnamed("broadcast_object", process_set) if name is None else checks.text(name, "name")
    data, problem = _dumped(obj) if basics.rank() == root_rank else (_NOTHING, None)
    count = int(_broadcast(_size(data, problem), root_rank, f"{label}.size", process_set)[0])
    _raise_for([count], [root_rank], problem)
    if basics.rank() != root_rank:
        data = np.empty(count, np.uint8)
    _broadcast(data, root_rank, f"{label}.data", process_set)
    return obj if basics.rank() == root_rank else objects.loaded(data)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Collective: the list of all ranks' objects, in rank order.

    Args:
        name: identifies the operation on all ranks; by default numbered.

    Raises:
        RuntimeError: one cannot be pickled; on its rank, pickle's error.
    """
    label = handles.unnamed("allgather_object", process_set) if name is None else checks.text(name, "name")
    data, problem = _dumped(obj)
    counts = _allgather(_size(data, problem), f"{label}.sizes", process_set)
    _raise_for(counts.tolist(), process_set.ranks or [], problem)
    joined = _allgather(data, f"{label}.data", process_set)
    return [objects.loaded(part) for part in np.split(joined, np.cumsum(counts)[:-1])]


def _broadcast(data: np.ndarray, root_rank: int, label: str, process_set: ProcessSet) -> np.ndarray:
    """Broadcast an array in place."""
    handles.run([operations.broadcast(data, data, root_rank, f"broadcast.{label}", process_set)], process_set)
    return data


def _allgather(data: np.ndarray, label: str, process_set: ProcessSet) -> np.ndarray:
    joined: np.ndarray = handles.run([Item("allgather", f"allgather.{label}", data, complete=True)], process_set)
    return joined


def _size(data: np.ndarray, problem: Exception | None) -> np.ndarray:
    """The first message: the number of bytes that follow; -1 if there are none, so that no rank waits for them."""
    return np.array([data.size if problem is None else -1])


def _raise_for(sizes: list[int], ranks: list[int], problem: Exception | None) -> None:
    if problem is not None:
        raise problem
    failed = [rank for size, rank in zip(sizes, ranks, strict=True) if size < 0]
    if failed:
        raise RuntimeError(f"the object of {name_ranks(failed)} cannot be pickled")


def _dumped(obj: Any) -> tuple[np.ndarray, Exception | None]:
    """The bytes of a pickle, or the exception that was raised."""
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = None
    try:
        return np.frombuffer(bytearray(objects.dumped(obj, pickler)), np.uint8), None
    except Exception as error:
        return _NOTHING, error
