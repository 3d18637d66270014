"""Sends small Python objects between ranks, as pickles.

Every sender first announces the length of its pickle, then sends the bytes. If an object cannot be pickled, the sender
announces minus the length of the pickled exception, which all ranks then raise: none waits for bytes that never arrive.

Unpickling executes code chosen by the sender. Ranks of a job trust each other; see docs/security.md.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pycollective import checks
from pycollective.comm.arguments.options import Moving
from pycollective.comm.request import CallRequest
from pycollective.errors import CommunicatorError, Error

if TYPE_CHECKING:
    from pycollective.comm.collectives import Collectives
    from pycollective.typing import T

_Array: TypeAlias = np.ndarray[Any, Any]
MOST_BYTES = (1 << 31) - 1
"""Most bytes of one pickle: objects are small, and a larger one is a mistake."""


@dataclass(frozen=True, slots=True)
class _Packed:
    """What this rank sends: an object, or the exception raised instead; by default nothing."""

    value: Any = None
    message: bytes = b""  # the pickle of the object or of the exception
    failure: Exception | None = None

    @property
    def length(self) -> int:
        """The announced length: negative for a failure."""
        return len(self.message) if self.failure is None else -len(self.message)


class ObjectExchange:
    """One collective of objects. `operation`: its name, with anything else that the ranks must agree on."""

    def __init__(self, comm: Collectives, operation: str, options: Moving) -> None:
        self._comm, self._operation, self._options = comm, operation, options
        self._group = comm.backend.group

    def broadcast(self, work: Callable[[], T], root: int) -> T:
        """Every rank gets the result of `work` on the root, or raises its exception."""
        mine = self._group.rank == root
        packed = _packed(work) if mine else _Packed()
        length = int(self._from_root(np.array([packed.length], np.int64), root)[0])
        self._raise_failure(length, root, packed)
        message = self._send_bytes(packed.message, length, root)
        result: T = packed.value if mine else loaded(message)
        return result

    def allgather(self, value: T) -> list[T]:
        """All ranks' objects, on every rank."""
        message, lengths = self._announce(_packed(lambda: value))
        joined = self._run("allgather", message, np.empty(sum(lengths), np.uint8), lengths)
        return _loaded_all(joined, lengths)

    def gather(self, value: T, root: int) -> list[T] | None:
        """All ranks' objects, on the root."""
        message, lengths = self._announce(_packed(lambda: value))
        joined = self._exchange(message, [[each * (rank == root) for rank in self._ranks] for each in lengths])
        return _loaded_all(joined, lengths) if self._group.rank == root else None

    def scatter(self, values: Sequence[T] | None, root: int) -> T:
        """One of the root's objects on each rank."""
        packed = _Packed()
        if self._group.rank == root:
            packed = _packed(lambda: [dumped(value) for value in _one_each(values, self._group.size)], b"".join)
        pickles = packed.value
        lengths = [packed.length for _ in self._ranks] if pickles is None else [len(each) for each in pickles]
        lengths = self._from_root(np.array(lengths, np.int64), root).tolist()
        self._raise_failure(lengths[0], root, packed)
        matrix = [[_checked(each, root) * (rank == root) for each in lengths] for rank in self._ranks]
        mine: T = loaded(self._exchange(np.frombuffer(packed.message, np.uint8), matrix))
        return mine

    @property
    def _ranks(self) -> range:
        return range(self._group.size)

    def _from_root(self, x: _Array, root: int) -> _Array:
        """Broadcast x, in place."""
        return self._run("broadcast", x if self._group.rank == root else None, x, root=root)

    def _exchange(self, x: _Array, matrix: list[list[int]]) -> _Array:
        """An alltoall of bytes. `matrix[s][d]`: how many from s to d."""
        received = np.empty(sum(sent[self._group.rank] for sent in matrix), np.uint8)
        return self._run("alltoall", x, received, [each for sent in matrix for each in sent])

    def _announce(self, packed: _Packed) -> tuple[_Array, list[int]]:
        """Announce this rank's length: returns its bytes, and all ranks' lengths."""
        size = self._group.size
        lengths = self._run("allgather", np.array([packed.length], np.int64), np.empty(size, np.int64), [1] * size)
        for rank, length in enumerate(lengths.tolist()):
            self._raise_failure(length, rank, packed)
            _checked(length, rank)
        return np.frombuffer(packed.message, np.uint8), lengths.tolist()

    def _raise_failure(self, length: int, rank: int, packed: _Packed) -> None:
        """Raise the failure that `rank` has announced: it sends the exception, and every rank raises it."""
        if length >= 0:
            return
        error = loaded(self._send_bytes(packed.message, -length, rank))
        if self._group.rank == rank and packed.failure is not None:
            raise packed.failure
        if hasattr(error, "add_note"):
            error.add_note(f"raised on rank {rank}")
        raise error

    def _send_bytes(self, message: bytes, length: int, root: int) -> _Array:
        """Broadcast bytes whose length all ranks know."""
        mine = self._group.rank == root
        return self._from_root(
            np.frombuffer(message, np.uint8).copy() if mine else np.empty(_checked(length, root), np.uint8), root
        )

    def _run(
        self, collective: str, x: _Array | None, out: _Array, counts: Sequence[int] | None = None, root: int = -1
    ) -> _Array:
        """Make a call that is part of this operation on all ranks; returns `out`."""
        made = CallRequest(
            collective, x, out, root=root, counts=None if counts is None else tuple(counts),
            note=f"for {self._operation}", timeout=self._options.get("timeout"), name=self._options.get("name"),
        )  # fmt: skip
        self._comm.call(made)
        return out


def on_root(work: Callable[[], T], root: int, comm: Collectives, options: Moving | None = None) -> T:
    """Collective: the root calls `work`, and every rank returns its result or raises its exception.

    Raises:
        TypeError: pickle refuses the result. ValueError: root is not a rank.
    """
    root = root_number(root, comm.backend.group.size)
    return ObjectExchange(comm, f"broadcast_object from {root}", options or Moving()).broadcast(work, root)


def dumped(value: Any, pickler: Any = None) -> bytes:
    """The pickle of an object, to be sent to other ranks. `pickler`: a module to use instead of pickle.

    Raises:
        TypeError: pickle refuses the object. ValueError: its pickle is too long. Other errors of pickling.
    """
    try:
        message: bytes = (pickler or pickle).dumps(value)
    except (AttributeError, pickle.PicklingError) as error:  # depends on Python's version
        raise TypeError(f"the object cannot be sent, since pickle refuses it: {error}") from error
    if len(message) > MOST_BYTES:
        raise ValueError(f"the pickle of {checks.shown(value)} has {len(message)} bytes, more than {MOST_BYTES}")
    return message


def loaded(message: Any) -> Any:
    """The object in a received pickle: bytes, or an array of bytes."""
    return pickle.loads(memoryview(message))


def _loaded_all(joined: Any, lengths: list[int]) -> list[Any]:
    return [loaded(piece) for piece in np.split(joined, np.cumsum(lengths)[:-1])]


def _packed(make: Callable[[], Any], dump: Callable[[Any], bytes] = dumped) -> _Packed:
    """The result of `make`, or its exception, ready to be sent."""
    try:
        value = make()
        return _Packed(value, dump(value))
    except Exception as error:
        return _Packed(None, _dumped_error(error), error)


def _dumped_error(failure: Exception) -> bytes:
    """A failure that cannot be pickled is sent as an Error with its text."""
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


def root_number(root: Any, size: int) -> int:
    """The number of the rank that sends or gets the objects."""
    return checks.integer(root, "root", 0, size - 1)


def _checked(length: int, rank: int) -> int:
    """Check a length announced by a rank."""
    if length > MOST_BYTES:
        raise CommunicatorError(f"rank {rank} announced an object of {length} bytes, more than {MOST_BYTES}")
    return length
