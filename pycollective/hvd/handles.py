"""Handles: numbers that stand for operations under way, as Horovod's asynchronous functions return them."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pycollective import checks
from pycollective.engine import Item, Work
from pycollective.errors import CommunicatorError, NestedCallError, PeerLostError, TimeoutError
from pycollective.hvd import basics
from pycollective.hvd.basics import engine_of
from pycollective.hvd.exceptions import HorovodInternalError
from pycollective.hvd.process_sets import ProcessSet

Finish = Callable[[list[Any]], Any]
"""From the results of the works to what `synchronize` returns."""

Name = tuple[int | None, str]
"""A process set's number and an operation's name."""

_numbers = itertools.count(1)
_under_way: dict[int, tuple[list[Work], Finish, list[Name]]] = {}
_in_flight: dict[Name, tuple[Work, int]] = {}
"""Operations of handles that nobody has waited for, and how often anything had been waited for when they started."""
_waits = 0
_names: dict[tuple[int | None, str], Iterator[int]] = {}
_joins = 0
_lock = threading.RLock()  # a signal handler may come while this thread holds it


def first(results: list[Any]) -> Any:
    """The result of the only work."""
    return results[0]


def start(items: Sequence[Item], process_set: ProcessSet, finish: Finish = first) -> int:
    """Submit operations as a group; the handle for `synchronize`.

    Raises:
        ValueError: one of the names is in flight; no init(); this rank is not in the set; arguments that cannot work.
        HorovodInternalError: the engine has failed before.
    """
    engine = engine_of(process_set)
    names = [(process_set.process_set_id, item.name) for item in items]
    _require_free(names)
    with internal_errors():
        works = engine.submit(items) if items else []
    handle = next(_numbers)
    _under_way[handle] = works, finish, names
    _in_flight.update(zip(names, ((work, _waits) for work in works), strict=True))
    return handle


def run(items: Sequence[Item], process_set: ProcessSet, finish: Finish = first) -> Any:
    """start and synchronize in one: quicker."""
    global _waits
    engine = engine_of(process_set)
    if _in_flight:
        _require_free([(process_set.process_set_id, item.name) for item in items])
    with internal_errors():
        results = engine.run(items) if items else []
    _waits += 1
    return finish(results)


def _require_free(names: Sequence[Name]) -> None:
    """Refuse names that are in flight, which an operation is until this rank has waited for it.

    Whether the operation itself is complete depends on the other ranks' timing, and the same program must not fail
    now and then. A name whose handle was dropped is free once the operation is complete and this rank has waited for
    any other one since.

    Raises:
        ValueError: one of the names is in flight.
    """
    for name in names:
        work, waits = _in_flight.get(name, (None, 0))
        if work is not None and not (waits != _waits and work.done()):
            raise ValueError(f"an operation named {name[1]!r} is in flight: synchronize it, or use another name")


def named(kind: str, name: str | None, process_set: ProcessSet) -> str:
    """What the ranks know an operation by: its kind, and the name that it was given or a number."""
    return unnamed(kind, process_set) if name is None else f"{kind}.{checks.text(name, 'name')}"


def unnamed(kind: str, process_set: ProcessSet) -> str:
    """A name for an operation that has none: ranks call in the same order, so the same on all of them."""
    engine_of(process_set)  # or an operation that is refused would leave this rank's numbers ahead of the others'
    with _lock:
        count = _names.setdefault((process_set.process_set_id, kind), itertools.count(1))
        epoch = f"{_joins}." if _joins else ""
        return f"{kind}.noname.{epoch}{next(count)}"


def poll(handle: int) -> bool:
    """Whether an operation is complete, so that `synchronize` returns at once.

    Raises:
        ValueError: no such handle.
    """
    if not _is_known(handle):
        raise ValueError(f"handle {checks.brief(handle)} was not created, or has been synchronized")
    works, _, names = _under_way[handle]
    complete = all(work.done() for work in works)
    if complete:
        _release(names, works)
    return complete


def _is_known(handle: Any) -> bool:
    try:
        return handle in _under_way
    except Exception:  # something that cannot be hashed
        checks.refuse_type("handle", "what a function returned whose name ends with _async", handle)


def _release(names: Sequence[Name], works: Sequence[Work]) -> None:
    for name, work in zip(names, works, strict=True):
        if _in_flight.get(name, (None,))[0] is work:
            del _in_flight[name]


def synchronize(handle: Any) -> Any:
    """Wait for an operation; its result. None for a handle that is not known.

    Raises:
        RuntimeError: the ranks do not agree about the operation; says how.
        HorovodInternalError: a rank is gone or has shut down.
        NestedCallError: called from within another operation of this thread; the handle is as good as before.
    """
    if not _is_known(handle):
        return None
    works, finish, names = _under_way.pop(handle)
    try:
        with internal_errors():
            result = finish([work.wait() for work in works])
    except NestedCallError:  # nothing has come of it yet
        _under_way[handle] = works, finish, names
        raise
    except BaseException:
        _waited(names, works)
        raise
    _waited(names, works)
    return result


def _waited(names: list[Name], works: list[Work]) -> None:
    global _waits
    _waits += 1
    _release(names, works)


def shutdown() -> None:
    """End the engines; what is under way fails. init() may be called again."""
    global _joins
    basics.shutdown()
    _under_way.clear()
    _in_flight.clear()
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
    except NestedCallError:
        raise
    except (CommunicatorError, PeerLostError, TimeoutError) as error:
        raise HorovodInternalError(str(error)) from error
