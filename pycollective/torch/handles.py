"""Handles: numbers that stand for operations under way, as Horovod's asynchronous functions return them."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pycollective.engine import Item, Work
from pycollective.errors import CommunicatorError, PeerLostError, TimeoutError
from pycollective.torch.basics import engine_of
from pycollective.torch.exceptions import HorovodInternalError
from pycollective.torch.process_sets import ProcessSet

Finish = Callable[[list[Any]], Any]
"""From the results of the works to what `synchronize` returns."""

_numbers = itertools.count(1)
_under_way: dict[int, tuple[list[Work], Finish]] = {}
_names: dict[tuple[int | None, str], Iterator[int]] = {}
_joins = 0
_lock = threading.Lock()


def first(results: list[Any]) -> Any:
    """The result of the only work."""
    return results[0]


def start(items: Sequence[Item], process_set: ProcessSet, finish: Finish = first) -> int:
    """Submit operations as a group; the handle for `synchronize`.

    Raises:
        ValueError: one of the names is under way; no init(); this rank is not in the set; arguments that cannot work.
        HorovodInternalError: the engine has failed before.
    """
    engine = engine_of(process_set)
    with internal_errors():
        works = engine.submit(items) if items else []
    handle = next(_numbers)
    _under_way[handle] = works, finish
    return handle


def run(items: Sequence[Item], process_set: ProcessSet, finish: Finish = first) -> Any:
    """start and synchronize in one: quicker."""
    engine = engine_of(process_set)
    with internal_errors():
        return finish(engine.run(items) if items else [])


def unnamed(kind: str, process_set: ProcessSet) -> str:
    """A name for an operation that has none: ranks call in the same order, so the same on all of them."""
    with _lock:
        count = _names.setdefault((process_set.process_set_id, kind), itertools.count(1))
        epoch = f"{_joins}." if _joins else ""
        return f"{kind}.noname.{epoch}{next(count)}"


def poll(handle: int) -> bool:
    """Whether an operation is through, so that `synchronize` returns at once.

    Raises:
        ValueError: no such handle.
    """
    if handle not in _under_way:
        raise ValueError(f"handle {handle} was not created, or has been synchronized")
    return all(work.done() for work in _under_way[handle][0])


def synchronize(handle: Any) -> Any:
    """Wait for an operation; its result. None for a handle that is not known.

    Raises:
        RuntimeError: the ranks do not agree about the operation; says how.
        HorovodInternalError: a rank is gone or has shut down.
    """
    if handle not in _under_way:
        return None
    works, finish = _under_way.pop(handle)
    with internal_errors():
        return finish([work.wait() for work in works])


def forget_all() -> None:
    """After a shutdown: no handle is valid, and names start anew."""
    global _joins
    _under_way.clear()
    with _lock:
        _names.clear()
        _joins = 0


def all_joined() -> None:
    """After a join: ranks that joined early have called less often, so names are counted anew on all of them."""
    global _joins
    with _lock:
        _names.clear()
        _joins += 1


@contextlib.contextmanager
def internal_errors() -> Iterator[None]:
    """What ends the communicator becomes HorovodInternalError."""
    try:
        yield
    except (CommunicatorError, PeerLostError, TimeoutError) as error:
        raise HorovodInternalError(str(error)) from error
