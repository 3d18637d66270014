"""Calls whose arrays are in device memory: the executor stages them. Here a device is NumPy memory, and its copies are
done as late as allowed."""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from calls import on_each_rank

import pycollective as pc
from pycollective import Communicator, _core
from pycollective.comm.request import CallRequest

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint64
_MEMORY = ctypes.CFUNCTYPE(_POINTER, _POINTER, _LONG)
_COPY = ctypes.CFUNCTYPE(ctypes.c_bool, _POINTER, _INT, _POINTER, _POINTER, _LONG)
_MARK = ctypes.CFUNCTYPE(_LONG, _POINTER, _INT)
_REACHED = ctypes.CFUNCTYPE(_INT, _POINTER, _INT, _LONG)
_ERROR = ctypes.CFUNCTYPE(_POINTER, _POINTER)
_REASON = ctypes.create_string_buffer(b"out of order")
TO_HOST, TO_DEVICE = 0, 1


class _Table(ctypes.Structure):
    _fields_ = (
        ("self", _POINTER), ("memory", _MEMORY), ("copy", _COPY), ("mark", _MARK), ("reached", _REACHED),
        ("error", _ERROR),
    )  # fmt: skip


class LateCopies:
    """csrc/executor/device_copies.h: a copy is done when somebody asks for the third time whether it has been.

    Args:
        failing: number of the copy that fails; -1: none.
        never: no copy completes.

    Attributes:
        enqueued: the direction of each copy.
        memory_bytes: of the staging memory.
    """

    def __init__(self, failing: int = -1, never: bool = False) -> None:
        self.enqueued: list[int] = []
        self.memory_bytes = 0
        self._failing, self._never = failing, never
        self._memory = np.empty(0, np.uint8)
        self._waiting: tuple[deque[Any], deque[Any]] = deque(), deque()
        self._marked, self._reached, self._looks = [0, 0], [0, 0], [0, 0]
        self._table = _Table(
            None, _MEMORY(self._give), _COPY(self._copy), _MARK(self._mark), _REACHED(self._look),
            _ERROR(lambda _: ctypes.addressof(_REASON)),
        )  # fmt: skip
        self.address = ctypes.addressof(self._table)

    def _give(self, _: Any, nbytes: int) -> int:
        self.finish()
        self._memory = np.full(nbytes, 0xEE, np.uint8)
        self.memory_bytes = nbytes
        return self._memory.ctypes.data

    def _copy(self, _: Any, direction: int, into: int, source: int, nbytes: int) -> bool:
        if len(self.enqueued) == self._failing:
            return False
        self.enqueued.append(direction)
        self._waiting[direction].append((into, source, nbytes))
        return True

    def _mark(self, _: Any, direction: int) -> int:
        self._marked[direction] += 1
        self._waiting[direction].append(self._marked[direction])
        return self._marked[direction]

    def _look(self, _: Any, direction: int, mark: int) -> int:
        if self._reached[direction] >= mark:
            return 1
        self._looks[direction] += 1
        if self._looks[direction] % 3 == 0 and not self._never:
            self._advance(direction)
        return int(self._reached[direction] >= mark)

    def _advance(self, direction: int) -> None:
        """Up to the next mark."""
        while self._waiting[direction]:
            work = self._waiting[direction].popleft()
            if isinstance(work, int):
                self._reached[direction] = work
                return
            ctypes.memmove(*work)

    def finish(self) -> None:
        """Do all copies."""
        for direction in (TO_HOST, TO_DEVICE):
            while self._waiting[direction]:
                self._advance(direction)


def on_device(array: np.ndarray[Any, Any] | None) -> Any:
    """The buffer of an array that only the copies may touch."""
    if array is None:
        return None
    return _core.HostBuffer.on_device(array.ctypes.data, array.size, str(array.dtype), True)


def staged(comm: Communicator, copies: LateCopies, request: CallRequest) -> Any:
    """Make the call with staged arrays."""
    x, out = request.x, request.out
    comm.backend.run(replace(request, x=on_device(x), out=on_device(out), copies=copies.address))
    copies.finish()
    return out


def cut_small(comm: Communicator) -> None:
    """Tiles of 1 KiB: all ranks must do this."""
    comm.backend.team.tile_bytes = (1024, 1024)
    comm.barrier()


def numbers(comm: Communicator, count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(comm.rank).standard_normal(count).astype(np.float32)


HOSTS = [(0, 0, 0), (0, 1), (0, 0, 1, 1), (0, 1, 0)]


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("topology", ["direct", "ring", "ordered", "tree", "hierarchical"])
@on_each_rank()
def test_reductions(comm: Communicator, hosts: tuple[int, ...], topology: str) -> None:
    cut_small(comm)
    copies = LateCopies()
    for count in (0, 1, 255, 5003, 64_000):
        x = numbers(comm, count)
        expected = comm.allreduce(x, topology=topology)
        request = CallRequest("allreduce", x.copy(), np.full(count, -1, np.float32), topology=topology)
        assert staged(comm, copies, request).tobytes() == expected.tobytes(), count
        both = x.copy()
        request = CallRequest("allreduce", both, both, topology=topology)
        assert staged(comm, copies, request).tobytes() == expected.tobytes(), count


@pytest.mark.parametrize("hosts", HOSTS)
@on_each_rank()
def test_blocks(comm: Communicator, hosts: tuple[int, ...]) -> None:
    cut_small(comm)
    copies, n = LateCopies(), comm.size
    for rows in (1, 700, 9000):
        x = numbers(comm, rows * n)
        own = (rows,) * n
        for collective, counts, length, root in (
            ("allgather", (rows * n,) * n, rows * n * n, -1), ("reduce_scatter", own, rows, -1),
            ("alltoall", own * n, rows * n, -1), ("gather", (rows * n,) * n, rows * n * n, 1),
            ("scatter", own, rows, 1), ("broadcast", None, rows * n, 1), ("reduce", None, rows * n, 1),
            ("scan", None, rows * n, -1),
        ):  # fmt: skip
            gets = collective not in ("gather", "reduce") or comm.rank == root
            requests = [
                CallRequest(collective, x.copy(), np.zeros(length, np.float32) if gets else None, root=root,
                            counts=counts)
                for _ in range(2)
            ]  # fmt: skip
            comm.backend.run(requests[0])
            found = staged(comm, copies, requests[1])
            if gets:
                assert found.tobytes() == requests[0].out.tobytes(), (collective, rows)


@on_each_rank(hosts=(0, 1))
def test_tiles_are_pipelined(comm: Communicator) -> None:
    """The first tile of the result is copied to the device before the last tile of the input is copied from it, and the
    staging memory is a few tiles."""
    cut_small(comm)
    copies, x = LateCopies(), np.ones(100_000, np.float32)
    staged(comm, copies, CallRequest("allreduce", x, np.empty_like(x)))
    assert copies.enqueued[:2] == [TO_HOST, TO_HOST]
    assert copies.enqueued.index(TO_DEVICE) < len(copies.enqueued) / 8
    assert copies.memory_bytes < 400_000 / 8


@on_each_rank(hosts=(0, 0, 1))
def test_a_copy_that_fails(comm: Communicator) -> None:
    cut_small(comm)
    copies = LateCopies(failing=5 if comm.rank == 1 else -1)
    x = np.ones(10_000, np.float32)
    for text in ("rank 1 could not copy between its GPU and host memory during.*: out of order", "given up"):
        with pytest.raises(pc.CommunicatorError, match=text):
            staged(comm, copies, CallRequest("allreduce", x, np.empty_like(x)))


@on_each_rank(hosts=(0, 1))
def test_a_copy_that_does_not_end(comm: Communicator) -> None:
    copies = LateCopies(never=comm.rank == 1)
    x = np.ones(10, np.float32)
    with pytest.raises(pc.TimeoutError, match=r"rank 1 could not copy.*deadline"):
        staged(comm, copies, CallRequest("allreduce", x, np.empty_like(x), timeout=20 - 19.7 * comm.rank))
