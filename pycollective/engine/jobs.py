"""Operations of the engine that are run by the communicator's collectives, in the agreed order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective.comm import request
from pycollective.comm.arguments import arrays
from pycollective.engine.adasum import adasum
from pycollective.engine.operation import EngineJob, Item
from pycollective.errors import CommunicatorError
from pycollective.schedule.collectives import OPERATIONS

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator


def run(comm: Communicator, jobs: Sequence[EngineJob]) -> list[Any]:
    """Collective: run a batch, of a single operation except for allreduces; returns the results."""
    first = jobs[0]
    if first.absent and first.collective not in _WITHOUT_SOME:
        raise _needs_all(first, _WITHOUT_SOME)
    if OPERATIONS[first.collective].fused:
        assert first.gpu is not None  # the core runs those of the CPU
        return first.gpu.allreduce(jobs)
    run_one = _ALONE.get(first.collective, _run_collective)
    return [run_one(comm, first)]


def _needs_all(job: EngineJob, others: Collection[str]) -> CommunicatorError:
    return CommunicatorError(
        f"{job.collective} needs all ranks, but rank {job.absent[0]} has joined; "
        f"after a join() only {', '.join(sorted(others))} continue"
    )


def _run_collective(comm: Communicator, job: EngineJob) -> Any:
    """The operation's collective, on arrays as the ranks have submitted them."""
    operation, item = OPERATIONS[job.collective], job.item
    if operation.in_pairs:
        return _exchange(comm, job)
    if operation.rows_differ:
        return _join_blocks(comm, job)
    assert item is not None
    method = getattr(comm, operation.collective)
    if operation.rooted:
        return method(item.x, item.root, item.out, stream=job.stream)
    factors = {"op": item.op, "prescale": item.prescale, "postscale": item.postscale} if operation.reduces else {}
    return method(item.x, item.out, stream=job.stream, **factors)


def _join_blocks(comm: Communicator, job: EngineJob) -> Any:
    out = None if job.item is None else job.item.out
    result = comm.allgatherv(job.x(), job.rows, out, stream=job.stream)
    # Only now: ranks that have joined do not know the others' arguments, but take part.
    if job.absent and job.item is not None and job.item.complete:
        raise _needs_all(job, _WITHOUT_SOME - {job.collective})
    return result


def _exchange(comm: Communicator, job: EngineJob) -> Any:
    item = job.item
    assert item is not None and item.splits is not None
    matrix = comm.allgather(np.array(item.splits, np.int64)).reshape(comm.size, comm.size)
    name, group, rows = OPERATIONS[job.collective].collective, comm.backend.group, matrix.tolist()
    result = comm.call(request.exchanged(name, item.x, item.out, group, {"stream": job.stream}, rows))
    return result, [int(rows) for rows in matrix[:, comm.rank]]


def _adasum(comm: Communicator, job: EngineJob) -> Any:
    item = job.item
    assert item is not None
    if job.gpu is not None:
        return job.gpu.through_host(lambda x: adasum(comm, x), item.x, item.out)
    return adasum(comm, item.x, item.out)


def _barrier(comm: Communicator, job: EngineJob) -> None:
    """Does nothing: when all ranks have submitted it, a barrier is complete."""


def _call(comm: Communicator, job: EngineJob) -> Any:
    assert job.item is not None and job.item.run is not None
    return job.item.run(comm)


_ALONE: dict[str, Callable[[Communicator, EngineJob], Any]] = {
    "adasum": _adasum,
    "barrier": _barrier,
    "call": _call,
}
"""Operations that are no collective on the ranks' arrays."""
_WITHOUT_SOME = frozenset(row.name for row in OPERATIONS.values() if row.after_join)


def check(comm: Communicator, item: Item) -> None:
    """Raise errors that would occur on this rank only, before anything is announced."""
    if item.collective not in OPERATIONS:
        raise ValueError(f"the engine has no collective {item.collective!r}")
    row = OPERATIONS[item.collective]
    if not row.has_array or (row.fused and _needs_no_check(item)):
        return
    if item.x is None:
        raise TypeError(f"{item.collective} {item.name!r} has no array")
    for each in (item.x, item.out):
        if arrays.is_lazy_view(each):
            raise ValueError(f"{item.collective} {item.name!r}: a tensor has its {arrays.lazy_bit(each)}")
    if arrays.on_device(item.x):
        from pycollective.engine import device

        device.enter(comm, item)
    elif isinstance(item.x, np.ndarray):
        item.x = arrays.plain(item.x, "x")
    elif isinstance(item.x, np.generic) or not hasattr(item.x, "__dlpack__"):
        item.x = arrays.readable(item.x)  # converts numbers and sequences; rejects other objects
    shape = arrays.shape_of(item.x)
    if item.gpu is not None:
        pass
    elif item.out is None:
        item.out = arrays.new_like(item.x, shape) if row.fused else None
    elif not row.fused or isinstance(item.out, np.ndarray) or not hasattr(item.out, "__dlpack__"):
        arrays.writable(item.out)  # otherwise the core checks it, which is faster
    if row.in_pairs:
        _check_splits(item, shape, comm.size)
    elif row.rooted and item.out is not None and arrays.shape_of(item.out) != shape:
        raise ValueError(f"{item.collective} {item.name!r}: out has shape {arrays.shape_of(item.out)}, x {shape}")


def _needs_no_check(item: Item) -> bool:
    """Return whether the core checks all there is to check: plain arrays of NumPy or torch in CPU memory."""
    x, out = item.x, item.out
    if type(x) is np.ndarray:
        if out is None:
            item.out = np.empty(x.shape, x.dtype)
        return out is None or type(out) is np.ndarray
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)  # arrays.torch_of takes twice as long
    if type(x) is not tensor or not x.is_cpu or x.is_neg() or x.is_conj():
        return False
    return out is x or (type(out) is tensor and out.is_cpu and not (out.is_neg() or out.is_conj()))


def _check_splits(item: Item, shape: tuple[int, ...], size: int) -> None:
    rows = shape[0] if shape else 1
    if item.splits is None:
        if rows % size:
            raise ValueError(f"{item.collective} {item.name!r}: {rows} rows cannot be cut evenly for {size} ranks")
        item.splits = [rows // size] * size
    item.splits = [int(part) for part in item.splits]
    if len(item.splits) != size or min(item.splits) < 0 or sum(item.splits) != rows:
        raise ValueError(
            f"{item.collective} {item.name!r}: splits {item.splits} do not cut {rows} rows for {size} ranks"
        )
