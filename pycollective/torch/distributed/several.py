"""Collectives of several steps, as jobs for a process group's lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from pycollective.comm.calls import KIND
from pycollective.comm.communicator import Communicator
from pycollective.errors import MismatchError
from pycollective.torch.distributed import tensors
from pycollective.torch.distributed.lane import Job, Lane


def part_sizes(x: Any, splits: Sequence[int] | None, size: int, what: str) -> list[int]:
    """Elements of each rank's part of a tensor that is cut along its first axis, evenly without `splits`.

    Raises:
        ValueError: the axis cannot be cut so.
    """
    rows = x.shape[0] if x.dim() else 1
    if not splits:
        if rows % size:
            raise ValueError(f"alltoall: {rows} rows of the {what} are not {size} equal parts")
        return [x.numel() // size] * size
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise ValueError(f"alltoall: {what} splits {list(splits)} do not cut {rows} rows for {size} ranks")
    row = x.numel() // rows if rows else 0
    return [int(part) * row for part in splits]


def alltoall(
    inputs: Sequence[Any], outputs: Sequence[Any], sending: Sequence[int], receiving: Sequence[int], timeout: float
) -> Job:
    """alltoall of parts of any size: `sending[r]` elements for rank r, `receiving[r]` expected from it.

    Raises (the job):
        MismatchError: on every rank, if somewhere another size is expected than is sent.
    """

    def job(lane: Lane) -> None:
        comm = lane.comm
        matrix = _matrix(comm, sending, receiving, timeout)
        landing = tensors.Landing(outputs)
        data, into = tensors.buffers(tensors.moved(tensors.joined(inputs)), tensors.moved(landing.whole))
        width = tensors.width(outputs[0])
        counts = tuple(width * int(count) for count in matrix.flat)
        comm._call(KIND["alltoall"], data, into, "sum", None, -1, counts, None, timeout, False)
        if landing.finish is not None:
            landing.finish()

    return job


def _matrix(comm: Communicator, sending: Sequence[int], receiving: Sequence[int], timeout: float) -> Any:
    """[sender, receiver] -> elements."""
    said = comm.allgather(np.array([*sending, *receiving], np.int64), timeout=timeout)
    said = said.reshape(comm.size, 2, comm.size)
    sent, expected = said[:, 0], said[:, 1].T
    wrong = np.argwhere(sent != expected)
    if len(wrong):
        sender, receiver = wrong[0]
        raise MismatchError(
            f"alltoall: rank {sender} sends {sent[sender, receiver]} elements to rank {receiver}, "
            f"which expects {expected[sender, receiver]}"
        )
    return sent


def sparse_allreduce(x: Any, op: Any, timeout: float) -> Job:
    """Sum or average of sparse tensors (torch.sparse_coo) of one shape, in place.

    Raises:
        TypeError: another operator.
    """
    if op != dist.ReduceOp.SUM and op != dist.ReduceOp.AVG:
        raise TypeError(f"allreduce of sparse tensors takes SUM and AVG, not {op}")

    def job(lane: Lane) -> None:
        comm = lane.comm
        mine = x.detach().coalesce()
        counts = [int(n) for n in comm.allgather(np.array([mine._nnz()], np.int64), timeout=timeout)]
        # The entries' axis comes first, as communicators join arrays.
        where = _gathered(comm, mine.indices().t().contiguous(), counts, timeout)
        values = _gathered(comm, mine.values().contiguous(), counts, timeout)
        if op == dist.ReduceOp.AVG:
            values /= comm.size
        total = torch.sparse_coo_tensor(where.t(), values, x.shape, check_invariants=False).coalesce()
        with torch.no_grad():  # x itself: what detach() makes of a sparse tensor has indices of its own
            x.copy_(total)

    return job


def _gathered(comm: Communicator, x: Any, counts: Sequence[int], timeout: float) -> Any:
    """allgatherv of x (counts[r] rows on rank r), of any type."""
    out = torch.empty((sum(counts), *x.shape[1:]), dtype=x.dtype)
    data, into = tensors.buffers(tensors.moved(x), tensors.moved(out))
    row = tensors.width(x) * (x[0].numel() if len(x) else out[:1].numel())
    cut = tuple(row * count for count in counts)
    comm._call(KIND["allgather"], data, into, "sum", None, -1, cut, None, timeout, False)
    return out
