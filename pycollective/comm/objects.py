"""Python objects between ranks, by way of pickle: small things, beside the arrays.

Every sender first tells how many bytes its pickle has, then the bytes follow. If an object cannot be pickled it tells
minus the length of the pickled exception, which all ranks then raise: nobody waits for bytes that do not come.

Unpickling runs what the sender chose. Ranks of a job trust each other; see docs/security.md.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective import checks
from pycollective.comm import calls
from pycollective.comm.described import described
from pycollective.comm.options import Moving
from pycollective.comm.starting import Starting
from pycollective.errors import CommunicatorError, Error

if TYPE_CHECKING:
    from pycollective.comm.calls import Call
    from pycollective.typing import T

MOST_BYTES = (1 << 31) - 1
"""Of one pickle: objects are small things, and a length beyond this is a mistake."""


@dataclass(frozen=True, slots=True)
class _Packed:
    """What this rank sends.

    Attributes:
        value: the object; None where this rank has none, or there was a failure.
        message: its pickle, or the failure's.
        failure: what was raised instead.
    """

    value: Any = None
    message: bytes = b""
    failure: Exception | None = None

    @property
    def length(self) -> int:
        """What the other ranks are told: negative for a failure."""
        return len(self.message) if self.failure is None else -len(self.message)


@described
class Objects(Starting):
    """A communicator's collectives of objects."""

    def broadcast_object(self, value: T, root: int = 0, *, timeout: float | None = None, name: str | None = None) -> T:
        """Every rank gets the root's object.

        Args:
            value: any object that pickle takes, of less than 2 GiB; not looked at on the other ranks.
            root: the rank whose object counts.
            timeout: seconds to wait for the peers; default PYCOLLECTIVE_TIMEOUT.
            name: named in this call's errors.

        Returns:
            on the root `value` itself, on the others a copy.

        Raises:
            TypeError: pickle refuses the object, or something else that pickling raised: on every rank.
            ValueError: its pickle is too long, on every rank; or root is no rank.
        """
        return on_root(lambda: value, root, self, Moving(timeout=timeout, name=name))

    def allgather_object(self, value: T, *, timeout: float | None = None, name: str | None = None) -> list[T]:
        """Every rank gets all ranks' objects.

        Args:
            value: any object that pickle takes, of less than 2 GiB.
            timeout, name: as for `broadcast_object`.

        Returns:
            copies of the objects, in rank order.

        Raises:
            TypeError: pickle refuses a rank's object, or something else that pickling raised: on every rank.
            ValueError: a pickle is too long, on every rank.
        """
        options, note = Moving(timeout=timeout, name=name), "allgather_object"
        message, lengths = self._tell(_packed(lambda: value), note, options)
        return _loaded_all(self._send_objects(calls.allgather(message, None, lengths), note, options), lengths)

    def gather_object(
        self, value: T, root: int = 0, *, timeout: float | None = None, name: str | None = None
    ) -> list[T] | None:
        """The root gets all ranks' objects.

        Args:
            value: any object that pickle takes, of less than 2 GiB.
            root: the rank that gets them.
            timeout, name: as for `broadcast_object`.

        Returns:
            on the root copies of the objects, in rank order; None on the others.

        Raises:
            TypeError: pickle refuses a rank's object, or something else that pickling raised: on every rank.
            ValueError: a pickle is too long, on every rank; or root is no rank.
        """
        root, options = _root(root, self.size), Moving(timeout=timeout, name=name)
        note = f"gather_object to {root}"
        message, lengths = self._tell(_packed(lambda: value), note, options)
        matrix = [[length * (rank == root) for rank in range(self.size)] for length in lengths]
        mine = message if matrix[self.rank][root] else message[:0]
        joined = self._send_objects(calls.alltoall(mine, None, self.rank, self.size, matrix), note, options)
        return _loaded_all(joined, lengths) if self.rank == root else None

    def scatter_object(
        self, values: Sequence[T] | None, root: int = 0, *, timeout: float | None = None, name: str | None = None
    ) -> T:
        """Each rank gets one of the root's objects.

        Args:
            values: on the root one object for each rank, that pickle takes, each of less than 2 GiB; not looked at on
                the others.
            root: the rank that sends.
            timeout, name: as for `broadcast_object`.

        Returns:
            a copy of the object for this rank.

        Raises:
            TypeError: values is no sequence, pickle refuses one of them, or something else that pickling raised: on
                every rank.
            ValueError: values are more or fewer than the ranks, or a pickle is too long, on every rank; or root is no
                rank.
        """
        root, size, options = _root(root, self.size), self.size, Moving(timeout=timeout, name=name)
        note, packed = f"scatter_object from {root}", _Packed()
        if self.rank == root:
            packed = _packed(lambda: [dumped(value) for value in _one_each(values, size)], b"".join)
        lengths = [packed.length] * size if packed.value is None else [len(one) for one in packed.value]
        header = calls.broadcast(np.array(lengths, np.int64), root, None)
        lengths = [int(length) for length in self._send_objects(header, note, options)]
        self._raise_failure(lengths[0], root, packed, note, options)
        matrix = [[_checked(each, root) * (rank == root) for each in lengths] for rank in range(size)]
        sent = np.frombuffer(packed.message, np.uint8)
        mine: T = loaded(self._send_objects(calls.alltoall(sent, None, self.rank, size, matrix), note, options))
        return mine

    def _tell(self, packed: _Packed, note: str, options: Moving) -> tuple[np.ndarray[Any, Any], list[int]]:
        """Tell all ranks the length of what this one sends: its bytes, and all ranks' lengths."""
        header = calls.allgather(np.array([packed.length], np.int64), None, (1,) * self.size)
        lengths = [int(length) for length in self._send_objects(header, note, options)]
        for rank, length in enumerate(lengths):
            self._raise_failure(length, rank, packed, note, options)
            _checked(length, rank)
        return np.frombuffer(packed.message, np.uint8), lengths

    def _raise_failure(self, length: int, rank: int, packed: _Packed, note: str, options: Moving) -> None:
        """Where `rank` has told a failure: it tells which, and every rank raises that."""
        if length >= 0:
            return
        error = loaded(self._send_bytes(packed.message, -length, rank, note, options))
        if self.rank == rank and packed.failure is not None:
            raise packed.failure
        if hasattr(error, "add_note"):
            error.add_note(f"raised on rank {rank}")
        raise error

    def _send_bytes(self, message: bytes, length: int, root: int, note: str, options: Moving) -> Any:
        """Broadcast bytes whose number all ranks know."""
        mine = self.rank == root
        content = np.frombuffer(message, np.uint8) if mine else np.empty(_checked(length, root), np.uint8)
        return self._send_objects(calls.broadcast(content, root, None if mine else content), note, options)

    def _send_objects(self, call: Call, note: str, options: Moving) -> Any:
        """What a call returns whose ranks must all be in the operation that the note names."""
        return self._run(replace(call, note=f"{call.note} for {note}".strip()), options)


def on_root(work: Callable[[], T], root: int, comm: Objects, options: Moving | None = None) -> T:
    """Collective: the root does the work, and every rank returns its result or raises its exception.

    Raises:
        TypeError: pickle refuses the result. ValueError: root is no rank.
    """
    root, options = _root(root, comm.size), options or Moving()
    note = f"broadcast_object from {root}"
    packed = _packed(work) if comm.rank == root else _Packed()
    header = calls.broadcast(np.array([packed.length], np.int64), root, None)
    length = int(comm._send_objects(header, note, options)[0])
    comm._raise_failure(length, root, packed, note, options)
    message = comm._send_bytes(packed.message, length, root, note, options)
    result: T = packed.value if comm.rank == root else loaded(message)
    return result


def dumped(value: Any, pickler: Any = None) -> bytes:
    """The pickle of an object that other ranks are to get.

    Args:
        pickler: a module to use in place of pickle.

    Raises:
        TypeError: it refuses the object. What else the object raises. ValueError: it is too long.
    """
    try:
        message: bytes = (pickler or pickle).dumps(value)
    except (AttributeError, pickle.PicklingError) as error:  # of local functions and classes, by version of Python
        raise TypeError(f"the object cannot be sent, since pickle refuses it: {error}") from error
    if len(message) > MOST_BYTES:
        raise ValueError(f"the pickle of {checks.shown(value)} has {len(message)} bytes, more than {MOST_BYTES}")
    return message


def loaded(message: Any) -> Any:
    """The object in a pickle that a rank has sent: bytes, or an array of them."""
    return pickle.loads(memoryview(message))


def _loaded_all(joined: Any, lengths: list[int]) -> list[Any]:
    ends = np.cumsum(lengths)
    return [loaded(joined[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def _packed(make: Callable[[], Any], dump: Callable[[Any], bytes] = dumped) -> _Packed:
    """What `make` returns, or has raised, ready to be sent."""
    try:
        value = make()
        return _Packed(value, dump(value))
    except Exception as error:
        return _Packed(None, _dumped_error(error), error)


def _dumped_error(failure: Exception) -> bytes:
    """A failure that does not survive pickle is told in an Error."""
    try:
        message = pickle.dumps(failure)
        pickle.loads(message)
    except Exception:
        message = pickle.dumps(Error(f"{type(failure).__name__}: {failure}"))
    return message


def _one_each(values: Any, size: int) -> list[Any]:
    found = checks.items(values, "values", "objects")
    if len(found) != size:
        raise ValueError(f"values must be one object for each of {size} ranks, not {len(found)}")
    return found


def _root(root: Any, size: int) -> int:
    return checks.integer(root, "root", 0, size - 1)


def _checked(length: int, rank: int) -> int:
    """A length that a rank has told."""
    if length > MOST_BYTES:
        raise CommunicatorError(f"rank {rank} tells of an object of {length} bytes, more than {MOST_BYTES}")
    return length
