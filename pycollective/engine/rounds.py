"""The engine's agreement where ranks share no memory (several hosts): rounds of messages, as Horovod's controller has.

In every round all ranks tell each other what they have submitted since the last one. What all ranks have submitted
then runs on all of them in the same order. Slower than the agreement in shared memory by a round trip an operation;
the meaning is the same.
"""

from __future__ import annotations

import itertools
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective.comm import arrays
from pycollective.engine.item import Item
from pycollective.engine.jobs import element_type
from pycollective.errors import CommunicatorError, Error, MismatchError, TimeoutError

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator

LONGEST_PAUSE = 0.01
"""Seconds between rounds when nothing is under way."""


@dataclass(frozen=True)
class Signature:
    """What ranks must agree on. An extent of -1 may differ."""

    collective: str
    dtype: str
    shape: tuple[int, ...]
    op: str
    root: int
    prescale: float
    postscale: float
    group: tuple[str, ...]

    def __str__(self) -> str:
        text = f"{self.collective}(shape={self.shape}, dtype={self.dtype}".replace("-1", "*")
        text += f", op={self.op}" if self.op else ""
        text += f", prescale={self.prescale:g}" if self.prescale != 1 else ""
        text += f", postscale={self.postscale:g}" if self.postscale != 1 else ""
        return (
            text
            + (f", root={self.root}" if self.root >= 0 else "")
            + (f", in a group of {len(self.group)})" if self.group else ")")
        )


@dataclass
class Said:
    """What a rank says about an operation."""

    name: str
    signature: Signature
    rows: int
    priority: int


@dataclass
class Operation:
    """An operation that some ranks have submitted."""

    said: dict[int, Said] = field(default_factory=dict)
    since: float = 0.0


class RoundWork:
    """See pycollective.engine.item.Work."""

    def __init__(self, item: Item) -> None:
        self.name, self.item = item.name, item
        self.result: Any = None
        self.error: BaseException | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    def done(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> Any:
        if not self._done.wait(timeout):
            raise TimeoutError(f"operation {self.name!r} is not through yet; it can be waited for again")
        if self.error is not None:
            raise self.error
        return self.result

    def when_done(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def finish(self) -> None:
        with self._lock:
            self._done.set()
        for callback in self._callbacks:
            callback()


class Rounds:
    """Does what `_core.Engine` does, over any communicator."""

    def __init__(self, comm: Communicator, run: Callable[..., None]) -> None:
        """`run`: runs one operation that is no allreduce, as for `_core.Engine`."""
        self._comm, self._run_one = comm, run
        self._lock = threading.Lock()
        self._news: list[Said] = []
        self._works: dict[str, RoundWork] = {}
        self._operations: dict[str, Operation] = {}
        self._joined: list[int] = []
        self._closing = False
        self._fault: BaseException | None = None
        self._traffic = (0, 0)
        self._submitted = threading.Event()
        self.threshold, self.cycle_seconds = 128 << 20, 1e-3

    def submit(self, items: Sequence[Item], now: bool) -> list[RoundWork]:
        names = tuple(item.name for item in items)
        works = [RoundWork(item) for item in items]
        group = tuple(sorted(names)) if len(names) > 1 else ()
        said = [_read(item, group) for item in items]
        with self._lock:
            if self._fault is not None:
                raise self._fault
            for number, name in enumerate(names):
                if name in self._works or name in names[:number]:
                    raise ValueError(f"an operation named {name!r} is under way: wait for it, or use another name")
            self._works.update(zip(names, works, strict=True))
            self._news.extend(said)
        self._submitted.set()
        return works

    # -- rounds ----------------------------------------------------------------------------------------------------

    def loop(self) -> None:
        """The engine's thread; returns when some rank has closed."""
        pause = self.cycle_seconds
        try:
            while True:
                busy, closed = self._round()
                if closed is not None:
                    raise CommunicatorError(f"rank {closed} has shut its engine down")
                pause = self.cycle_seconds if busy else min(2 * pause, LONGEST_PAUSE)
                if not self._operations:
                    self._submitted.wait(pause)
                    self._submitted.clear()
                else:
                    time.sleep(min(pause, self.cycle_seconds))
        except Exception as error:
            self._fail(error)

    def _round(self) -> tuple[bool, int | None]:
        """One exchange and what follows from it: (whether anything is going on, who has closed)."""
        with self._lock:
            news, self._news = self._news, []
        said = [pickle.loads(data) for data in self._comm._exchange(pickle.dumps((news, self._closing)))]
        for rank, (operations, _) in enumerate(said):
            for operation in operations:
                self._note(rank, operation)
        ready = self._ready()
        self._run(ready)
        closed = next((rank for rank, (_, closing) in enumerate(said) if closing), None)
        return any(operations for operations, _ in said) or bool(self._operations), closed

    def _note(self, rank: int, said: Said) -> None:
        operation = self._operations.setdefault(said.name, Operation(since=time.monotonic()))
        operation.said[rank] = said
        if said.signature.collective == "join":
            self._joined.append(rank)

    def _ready(self) -> list[tuple[str, Operation, list[int]]]:
        """Operations that all ranks take part in, in the order to run them, and who does so having joined."""
        size = self._comm.size
        found = []
        for name, operation in self._operations.items():
            signature = next(iter(operation.said.values())).signature
            joined = [] if signature.collective == "join" else self._joined
            absent = [rank for rank in joined if rank not in operation.said]
            if len(operation.said) + len(absent) == size:
                found.append((name, operation, absent))
        found.sort(key=lambda row: next(iter(row[1].said.values())).signature.collective == "join")
        for name, _, _ in found:
            del self._operations[name]
        return found

    # -- running ---------------------------------------------------------------------------------------------------

    def _run(self, ready: list[tuple[str, Operation, list[int]]]) -> None:
        fused: dict[tuple[str, str, float, float], list[tuple[str, Signature]]] = {}
        for name, operation, absent in ready:
            signatures = {said.signature: rank for rank, said in reversed(operation.said.items())}
            signature = next(iter(operation.said.values())).signature
            if len(signatures) > 1:
                self._finish(name, MismatchError(_difference(name, operation)))
            elif signature.collective == "allreduce":
                key = (signature.dtype, signature.op, signature.prescale, signature.postscale)
                fused.setdefault(key, []).append((name, signature))
            elif signature.collective == "join":
                last, self._joined = self._joined[-1], []
                self._works["pycollective.join"].result = last
                self._finish(name)
            else:
                rows = [operation.said[rank].rows if rank not in absent else 0 for rank in range(self._comm.size)]
                work = self._works.get(name)
                self._run_one(work, signature.collective, signature.dtype, list(signature.shape), rows, absent)
                self._finish(name)
        for (dtype, op, prescale, postscale), members in fused.items():
            for batch in self._cut(dtype, members):
                self._allreduce(dtype, op, prescale, postscale, batch)

    def _cut(self, dtype: str, members: list[tuple[str, Signature]]) -> list[list[tuple[str, Signature]]]:
        """Batches of at most the fusion threshold."""
        batches: list[list[tuple[str, Signature]]] = []
        room = 0
        for name, signature in members:
            nbytes = int(np.prod(signature.shape, dtype=np.int64)) * arrays.numpy_dtype(dtype).itemsize
            if not batches or nbytes > room:
                batches.append([])
                room = self.threshold
            batches[-1].append((name, signature))
            room -= nbytes
        return batches

    def _allreduce(
        self, dtype: str, op: str, prescale: float, postscale: float, batch: list[tuple[str, Signature]]
    ) -> None:
        sizes = [int(np.prod(signature.shape, dtype=np.int64)) for _, signature in batch]
        ends = list(itertools.accumulate(sizes))
        buffer = np.zeros(ends[-1], arrays.numpy_dtype(dtype))
        works = [self._works.get(name) for name, _ in batch]
        for work, end, count in zip(works, ends, sizes, strict=True):
            if work is not None:
                buffer[end - count : end] = flat(arrays.readable(work.item.x))
        self._comm.allreduce(buffer, out=buffer, op=op, prescale=prescale, postscale=postscale)
        for work, end, count in zip(works, ends, sizes, strict=True):
            if work is not None:
                flat(arrays.writable(work.item.out))[...] = buffer[end - count : end]
                work.result = work.item.out
                self._finish(work.name)
        self._traffic = (self._traffic[0] + buffer.nbytes, self._traffic[1] + 1)

    def _finish(self, name: str, error: BaseException | None = None) -> None:
        with self._lock:
            work = self._works.pop(name, None)
        if work is not None:
            work.error = work.error or error
            work.finish()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._fault = error if isinstance(error, Error) else CommunicatorError(str(error))
            names = list(self._works)
        for name in names:
            self._finish(name, self._fault)

    # -- the rest of _core.Engine's surface ------------------------------------------------------------------------

    def close(self) -> None:
        """The thread tells the others in its next round, and ends."""
        self._closing = True
        self._submitted.set()

    def tune(self, threshold: int, cycle_seconds: float) -> None:
        """Of this rank's batches: the same on all ranks, or they would differ."""
        self.threshold, self.cycle_seconds = threshold, cycle_seconds

    def set_topologies(self, rows: Sequence[tuple[int, str]]) -> None:
        """Between hosts there is only MPI's own."""

    def traffic(self) -> tuple[int, int]:
        return self._traffic

    def report(self) -> str:
        now, lines = time.monotonic(), []
        for name, operation in list(self._operations.items()):
            missing = [rank for rank in range(self._comm.size) if rank not in operation.said]
            lines.append(f"  {name!r} has waited {now - operation.since:.1f} s for ranks {missing}\n")
        return "".join(lines)

    def trace(self, on: bool) -> None:
        """Rounds are not traced."""

    def take_events(self) -> tuple[list[Any], list[Any]]:
        return [], []


def flat(buffer: Any) -> Any:
    """The elements of what `arrays.readable` returns, as a flat NumPy array over the same memory."""
    if isinstance(buffer, np.ndarray):
        return buffer.reshape(-1)
    return buffer.array(arrays.numpy_dtype(buffer.dtype))


def _read(item: Item, group: tuple[str, ...]) -> Said:
    reduces = item.collective in ("allreduce", "reducescatter")
    shape = arrays.shape_of(item.x) if item.x is not None else ()
    rows = shape[0] if shape else 1
    if shape and item.collective in ("allgather", "alltoall"):
        shape = (-1, *shape[1:])
    signature = Signature(
        item.collective,
        element_type(item.x) if item.x is not None else "",
        shape,
        item.op if reduces else "",
        item.root if item.collective == "broadcast" else -1,
        item.prescale if reduces else 1.0,
        item.postscale if reduces else 1.0,
        group,
    )
    return Said(item.name, signature, rows, item.priority)


def _difference(name: str, operation: Operation) -> str:
    ranks = sorted(operation.said)
    first = ranks[0]
    other = next(r for r in ranks if operation.said[r].signature != operation.said[first].signature)
    return (
        f"operation {name!r} differs between ranks: rank {first} submits {operation.said[first].signature}; "
        f"rank {other} submits {operation.said[other].signature}"
    )
