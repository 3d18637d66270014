"""Handles: numbers that identify operations in progress, returned by Horovod's asynchronous functions."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pycollective import checks
from pycollective.engine import Item, Work
from pycollective.errors import CommunicatorError, Error, NestedCallError, PeerLostError, TimeoutError
from pycollective.hvd import basics
from pycollective.hvd.arguments import OPS
from pycollective.hvd.basics import engine_of
from pycollective.hvd.exceptions import HorovodInternalError
from pycollective.hvd.process_sets import ProcessSet

Finish = Callable[[list[Any]], Any]
"""Maps the results of the works to the return value of `synchronize`."""

Name = tuple[int | None, str]
"""A process set's number and an operation's name."""

_numbers = itertools.count(1)
_pending: dict[int, tuple[list[Work], Finish, list[Name]]] = {}
_in_flight: dict[Name, tuple[Work, int]] = {}
"""Operations whose handles have not been waited for, and the value of _waits when they started."""
_waits = 0
_names: dict[tuple[Any, str], int] = {}
"""The last number of operations without a name, by process set (see counted_as) and kind."""
_joins = 0
_lock = threading.RLock()  # a signal handler may run while this thread holds it


def first(results: list[Any]) -> Any:
    """The result of a single work."""
    return results[0]


def start(items: Sequence[Item], process_set: ProcessSet, finish: Finish = first) -> int:
    """Submit operations as a group; returns the handle for `synchronize`.

    Raises:
        ValueError: one of the names is in flight; init() was not called; this rank is not in the set; invalid
            arguments.
        HorovodInternalError: the engine has failed before.
    """
    engine = engine_of(process_set)
    names = [(process_set.process_set_id, item.name) for item in items]
    try:
        _require_free(names)
        with internal_errors():
            works = engine.submit(items) if items else []
    except (ValueError, TypeError) as error:
        refuse(items[0].name, process_set, error)
        raise
    handle = next(_numbers)
    _pending[handle] = works, finish, names
    _in_flight.update(zip(names, ((work, _waits) for work in works), strict=True))
    return handle


def run(items: Sequence[Item], process_set: ProcessSet, finish: Finish = first) -> Any:
    """start and synchronize in one call, which is faster."""
    global _waits
    engine = engine_of(process_set)
    try:  # internal_errors() costs a microsecond
        if _in_flight:
            _require_free([(process_set.process_set_id, item.name) for item in items])
        results = engine.run(items) if items else []
    except (ValueError, TypeError) as error:
        refuse(items[0].name, process_set, error)
        raise
    except Error as error:
        if _ends_communicator(error):
            raise HorovodInternalError(str(error)) from error
        raise
    _waits += 1
    return finish(results)


def run_group(
    name: str | None,
    tensors: Sequence[Any],
    op: int,
    prescale: Any,
    postscale: Any,
    process_set: ProcessSet,
    make: Callable[[Any], Any] | None,
    least: int = 0,
) -> list[Any] | None:
    """`run` of allreduces of torch tensors as a group, if they need neither checks nor conversion; else None.

    Args:
        make, least: see Engine.reduce_group.
    """
    global _waits
    operator = OPS.get(op)
    if _in_flight or operator is None or type(prescale) is not float or type(postscale) is not float:
        return None
    try:
        results = engine_of(process_set).reduce_group(
            lambda: named("allreduce", name, process_set), tensors, operator, prescale, postscale, make, least
        )
    except Error as error:
        if _ends_communicator(error):
            raise HorovodInternalError(str(error)) from error
        raise
    if results is not None:
        _waits += 1
    return results


def _require_free(names: Sequence[Name]) -> None:
    """Reject names that are in flight. An operation is in flight until this rank has waited for it.

    Whether the operation itself has completed depends on the other ranks' timing, and a program must not fail at
    random. If a handle was dropped, its name is free once the operation has completed and this rank has since waited
    for any other operation.

    Raises:
        ValueError: one of the names is in flight.
    """
    for name in names:
        work, waits = _in_flight.get(name, (None, 0))
        if work is not None and not (waits != _waits and work.test()):
            raise ValueError(f"an operation named {name[1]!r} is in flight: synchronize it, or use another name")


def named(kind: str, name: str | None, process_set: ProcessSet) -> str:
    """The name of an operation on all ranks: its kind, and the given name or a number."""
    return unnamed(kind, process_set) if name is None else f"{kind}.{checks.text(name, 'name')}"


def unnamed(kind: str, process_set: ProcessSet) -> str:
    """A name for an operation without one: the same on all ranks, as they call in the same order."""
    engine_of(process_set)  # a rejected operation must not advance this rank's numbers
    with _lock:
        key = process_set.counted_as, kind
        _names[key] = _names.get(key, 0) + 1
        return _noname(kind, _names[key])


def _noname(kind: str, number: int) -> str:
    return f"{kind}.noname.{_joins}.{number}" if _joins else f"{kind}.noname.{number}"


class Naming:
    """A context in which an operation is made; entering it returns the operation's name on all ranks, see `named`.

    If an error leaves it, the operation is refused: the other ranks, which may wait for it, learn why, and the name is
    free again, so that a program that catches the error may call once more.
    """

    __slots__ = ("_kind", "_name", "_process_set")

    def __init__(self, kind: str, name: str | None, process_set: ProcessSet) -> None:
        self._kind, self._name, self._process_set = kind, name, process_set

    def __enter__(self) -> str:
        self._name = named(self._kind, self._name, self._process_set)
        return self._name

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and self._name is not None:
            refuse(self._name, self._process_set, error)


def refuse(label: str, process_set: ProcessSet, error: Exception) -> None:
    """Tell the other ranks why this one does not submit an operation; if it has no name, the next has its number."""
    engine_of(process_set).refuse(label, error)
    kind = label.partition(".noname.")[0]
    key = process_set.counted_as, kind
    with _lock:
        last = _noname(kind, _names.get(key, 0))
        if label == last or label.startswith(f"{last}."):
            _names[key] -= 1


def poll(handle: int) -> bool:
    """Return whether an operation has completed, so that `synchronize` returns immediately.

    Raises:
        ValueError: there is no such handle.
    """
    if not _is_known(handle):
        raise ValueError(f"handle {checks.brief(handle)} was not created, or has been synchronized")
    works, _, names = _pending[handle]
    complete = all(work.test() for work in works)
    if complete:
        _release(names, works)
    return complete


def _is_known(handle: Any) -> bool:
    try:
        return handle in _pending
    except Exception:  # not hashable
        checks.refuse_type("handle", "what a function returned whose name ends with _async", handle)


def _release(names: Sequence[Name], works: Sequence[Work]) -> None:
    for name, work in zip(names, works, strict=True):
        if _in_flight.get(name, (None,))[0] is work:
            del _in_flight[name]


def synchronize(handle: Any) -> Any:
    """Wait for an operation; returns its result, or None if the handle is unknown.

    Raises:
        RuntimeError: the ranks' operations do not match; the message has the differences.
        HorovodInternalError: a rank was lost or has shut down.
        NestedCallError: called from within another operation of this thread; the handle remains valid.
    """
    if not _is_known(handle):
        return None
    works, finish, names = _pending.pop(handle)
    try:
        with internal_errors():
            result = finish([work.wait() for work in works])
    except NestedCallError:  # not waited for yet
        _pending[handle] = works, finish, names
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
    """Stop the engines; operations in progress fail. init() may be called again."""
    global _joins
    basics.shutdown()
    _pending.clear()
    _in_flight.clear()
    with _lock:
        _names.clear()
        _joins = 0


def all_joined() -> None:
    """Called after a join: ranks that joined early have made fewer calls, so all ranks restart their numbering."""
    global _joins
    with _lock:
        _names.clear()
        _joins += 1


@contextlib.contextmanager
def internal_errors() -> Iterator[None]:
    """Convert errors that end the communicator to HorovodInternalError."""
    try:
        yield
    except Error as error:
        if _ends_communicator(error):
            raise HorovodInternalError(str(error)) from error
        raise


def _ends_communicator(error: Error) -> bool:
    return isinstance(error, (CommunicatorError, PeerLostError, TimeoutError)) and not isinstance(
        error, NestedCallError
    )
