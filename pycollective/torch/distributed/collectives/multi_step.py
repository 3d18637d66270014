"""Collectives of several steps: the ranks first exchange sizes, then move data of these sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from pycollective.comm.communicator import Communicator
from pycollective.comm.request import CallRequest
from pycollective.errors import MismatchError
from pycollective.torch.distributed import tensors
from pycollective.torch.distributed.collectives.arguments import kind_of
from pycollective.torch.distributed.cuda import cuda
from pycollective.torch.distributed.execution import streams


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one call. Both are collective.

    Attributes:
        kind: of collective.
        agree: exchanges sizes, through CPU memory.
        move: the rest, given the result of `agree`. For tensors on a device: enqueued in the current stream.
    """

    kind: str
    agree: Callable[[Communicator], Any]
    move: Callable[[Communicator, Any], None]


def part_sizes(x: Any, splits: Sequence[int] | None, size: int, what: str) -> list[int]:
    """Number of elements of each rank's part of a tensor split along its first axis, evenly without `splits`.

    Raises:
        ValueError: the axis cannot be split this way.
    """
    rows = x.shape[0] if x.dim() else 1
    if not splits:
        if rows % size:
            raise ValueError(f"alltoall: {rows} rows of the {what} cannot be divided into {size} equal parts")
        return [x.numel() // size] * size
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise ValueError(f"alltoall: {what} splits {list(splits)} do not cut {rows} rows for {size} ranks")
    row = x.numel() // rows if rows else 0
    return [int(part) * row for part in splits]


def alltoall(
    inputs: Sequence[Any], outputs: Sequence[Any], sending: Sequence[int], receiving: Sequence[int], timeout: float
) -> Steps:
    """alltoall of parts of any size: `sending[r]` elements for rank r, `receiving[r]` expected from it.

    Raises (when executed):
        MismatchError: on every rank, if any rank expects another size than is sent to it.
    """

    def agree(comm: Communicator) -> Any:
        return _matrix(comm, sending, receiving, timeout)

    def move(comm: Communicator, matrix: Any) -> None:
        joined = tensors.JoinedOutputs(outputs)
        data, into = tensors.moved(tensors.joined(inputs)), tensors.moved(joined.whole)
        width = tensors.width(outputs[0])
        counts = tuple(width * int(count) for count in matrix.flat)
        _move(comm, "alltoall", data, into, counts, timeout)
        if joined.finish is not None:
            joined.finish()

    return Steps("alltoall", agree, move)


def _matrix(comm: Communicator, sending: Sequence[int], receiving: Sequence[int], timeout: float) -> Any:
    """[sender, receiver] -> elements."""
    sizes = comm.allgather(np.array([*sending, *receiving], np.int64), timeout=timeout)
    sizes = sizes.reshape(comm.size, 2, comm.size)
    sent, expected = sizes[:, 0], sizes[:, 1].T
    wrong = np.argwhere(sent != expected)
    if len(wrong):
        sender, receiver = wrong[0]
        raise MismatchError(
            f"alltoall: rank {sender} sends {sent[sender, receiver]} elements to rank {receiver}, "
            f"which expects {expected[sender, receiver]}"
        )
    return sent


def sparse_allreduce(x: Any, op: Any, timeout: float) -> Steps:
    """Sum or average of sparse tensors (torch.sparse_coo) of one shape, in place.

    Raises:
        TypeError: another operator.
    """
    if op != dist.ReduceOp.SUM and op != dist.ReduceOp.AVG:
        raise TypeError(f"allreduce of sparse tensors supports SUM and AVG, not {kind_of(op).name}")

    def agree(comm: Communicator) -> Any:
        mine = x.detach().coalesce()
        counts = [int(n) for n in comm.allgather(np.array([mine._nnz()], np.int64), timeout=timeout)]
        return mine, counts

    def move(comm: Communicator, agreed: Any) -> None:
        mine, counts = agreed
        # The entries' axis comes first, as communicators concatenate along it.
        where = _gathered(comm, mine.indices().t().contiguous(), counts, timeout)
        values = _gathered(comm, mine.values().contiguous(), counts, timeout)
        if op == dist.ReduceOp.AVG:
            values /= comm.size
        total = torch.sparse_coo_tensor(where.t(), values, x.shape, check_invariants=False).coalesce()
        with torch.no_grad():  # x itself: detach() of a sparse tensor has its own indices
            x.copy_(total)

    return Steps("allreduce", agree, move)


def _gathered(comm: Communicator, x: Any, counts: Sequence[int], timeout: float) -> Any:
    """allgatherv of x (counts[r] rows on rank r), of any type."""
    out = torch.empty((sum(counts), *x.shape[1:]), dtype=x.dtype, device=x.device)
    row = tensors.width(x) * (x[0].numel() if len(x) else out[:1].numel())
    cut = tuple(row * count for count in counts)
    _move(comm, "allgather", tensors.moved(x), tensors.moved(out), cut, timeout)
    return out


def _move(comm: Communicator, kind: str, data: Any, into: Any, counts: tuple[int, ...], timeout: float) -> None:
    """A collective: completed when it returns, or on a device enqueued in the current stream."""
    device, request = cuda().device(into), CallRequest(kind, data, into, counts=counts, timeout=timeout)
    if device < 0:
        request.x, request.out = tensors.buffers(data, into)
        comm.backend.run(request)
    else:
        streams.launch(comm, request, cuda().current(device))
