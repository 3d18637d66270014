"""Operations of the engine that the communicator's collectives run, one at a time, in the agreed order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective import _core
from pycollective.comm import arrays, calls
from pycollective.engine.adasum import adasum
from pycollective.engine.item import Item
from pycollective.errors import CommunicatorError

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator


@dataclass(slots=True)
class Job:
    """An operation that all ranks have agreed to run now.

    Attributes:
        item: as this rank submitted it; None where the rank has joined.
        collective: its name.
        dtype: of x, "" where there is none.
        shape: of x; the first extent is -1 where ranks may differ.
        rows: the first extent of each rank's x; 0 for ranks that have joined.
        absent: ranks that have joined.
    """

    item: Item | None
    collective: str
    dtype: str
    shape: Sequence[int]
    rows: Sequence[int]
    absent: Sequence[int]

    def x(self) -> Any:
        """This rank's input; of a rank that has joined nothing, or zeros where the shape is agreed."""
        if self.item is not None:
            return self.item.x
        shape = [0 if extent < 0 else extent for extent in self.shape]
        return np.zeros(shape, arrays.numpy_dtype(self.dtype))


def run(comm: Communicator, job: Job) -> Any:
    """Collective: the result of an operation.

    Raises:
        CommunicatorError: it needs a rank that has joined.
    """
    if job.absent and job.collective not in _WITHOUT_SOME:
        raise CommunicatorError(
            f"{job.collective} needs all ranks, but rank {job.absent[0]} has joined; "
            f"after a join() only {', '.join(sorted(_WITHOUT_SOME))} go on"
        )
    return _RUN[job.collective](comm, job)


def _allreduce_on_device(comm: Communicator, job: Job) -> Any:
    item = job.item
    assert item is not None
    return comm.allreduce(
        item.x, item.out, op=item.op, prescale=item.prescale, postscale=item.postscale, stream=item.stream
    )


def _broadcast(comm: Communicator, job: Job) -> Any:
    item = job.item
    assert item is not None
    return comm.broadcast(item.x, item.root, item.out, stream=item.stream)


def _allgather(comm: Communicator, job: Job) -> Any:
    if job.item is None:
        return comm.allgatherv(job.x(), job.rows)
    return comm.allgatherv(job.item.x, job.rows, job.item.out, stream=job.item.stream)


def _alltoall(comm: Communicator, job: Job) -> Any:
    item = job.item
    assert item is not None and item.splits is not None
    matrix = comm.allgather(np.array(item.splits, np.int64)).reshape(comm.size, comm.size)
    result = comm._run(calls.alltoall(item.x, item.out, comm.rank, comm.size, matrix.tolist()), {"stream": item.stream})
    return result, [int(rows) for rows in matrix[:, comm.rank]]


def _reducescatter(comm: Communicator, job: Job) -> Any:
    if job.item is None:
        raise AssertionError("a reducescatter needs all ranks")
    item = job.item
    return comm.reduce_scatter(
        item.x, item.out, op=item.op, prescale=item.prescale, postscale=item.postscale, stream=item.stream
    )


def _adasum(comm: Communicator, job: Job) -> Any:
    assert job.item is not None
    return adasum(comm, job.item.x, job.item.out)


def _barrier(comm: Communicator, job: Job) -> None:
    """Everybody has submitted it: that is all there is to a barrier."""


def _call(comm: Communicator, job: Job) -> Any:
    assert job.item is not None and job.item.run is not None
    return job.item.run(comm)


_RUN: dict[str, Callable[[Communicator, Job], Any]] = {
    "adasum": _adasum,
    "allgather": _allgather,
    "alltoall": _alltoall,
    "barrier": _barrier,
    "broadcast": _broadcast,
    "call": _call,
    "device_allreduce": _allreduce_on_device,
    "reducescatter": _reducescatter,
}
_WITHOUT_SOME = frozenset(("allgather", "allreduce", "barrier"))


def check(item: Item, size: int) -> None:
    """What would fail on this rank alone, found before anything is announced.

    Raises:
        TypeError, ValueError: arguments that cannot work.
    """
    if item.collective in ("barrier", "join", "call"):
        return
    if item.x is None:
        raise TypeError(f"{item.collective} {item.name!r} has no array")
    if arrays.on_device(item.x):
        from pycollective.comm.cuda import arrays as device_arrays

        item.stream = device_arrays.stream_of(None, item.x)
        item.device, item.element = True, device_arrays.view(item.x, item.stream, "x").dtype
    elif not hasattr(item.x, "__dlpack__"):
        item.x = arrays.readable(item.x)  # numbers and sequences of them; what is no array is refused
    shape = arrays.shape_of(item.x)
    if item.device:
        pass  # the communicator looks at the rest
    elif item.out is not None:
        arrays.writable(item.out)
    elif item.collective == "allreduce":
        item.out = arrays.new_like(item.x, shape)
    if item.collective == "alltoall":
        _check_splits(item, shape, size)
    elif item.collective == "broadcast" and item.out is not None and arrays.shape_of(item.out) != shape:
        raise ValueError(f"broadcast {item.name!r}: out has shape {arrays.shape_of(item.out)}, x {shape}")


def _check_splits(item: Item, shape: tuple[int, ...], size: int) -> None:
    rows = shape[0] if shape else 1
    if item.splits is None:
        if rows % size:
            raise ValueError(f"alltoall {item.name!r}: {rows} rows cannot be cut evenly for {size} ranks")
        item.splits = [rows // size] * size
    item.splits = [int(part) for part in item.splits]
    if len(item.splits) != size or min(item.splits) < 0 or sum(item.splits) != rows:
        raise ValueError(f"alltoall {item.name!r}: splits {item.splits} do not cut {rows} rows for {size} ranks")


def element_type(x: Any) -> str:
    """The name of an array's element type, as the core has it."""
    return str(_core.dtype_name(x.dtype) if isinstance(x, np.ndarray) else _core.HostBuffer(x).dtype)
