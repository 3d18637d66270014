"""Broadcasts that training scripts need: of variables and of objects, from one rank to all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pycollective.hvd import objects
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.tensorflow.hvd.variables import broadcast_variables as broadcast_variables


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Collective: broadcast the root's object to all ranks, see pycollective.hvd.objects.

    It is done at once, in a graph as well; `session` is ignored.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """A function that is broadcast_object with these arguments."""
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Collective: the list of all ranks' objects, in rank order; `session` is ignored."""
    return objects.allgather_object(obj, name, process_set)
