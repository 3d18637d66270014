"""send and recv between hosts: MPI's own messages already have tags and senders."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from pycollective import _core
from pycollective.errors import TimeoutError

_EAGER_LOOKS = 200
_NAP, _LONGEST_NAP = 20e-6, 1e-3


class MpiMessages:
    """The messages of a process group that spans hosts; the interface of Messages.

    Args:
        comm: an mpi4py communicator of the group's ranks, for messages only; freed by `close`.
        timeout: of a message, in seconds.
    """

    def __init__(self, comm: Any, timeout: float) -> None:
        from mpi4py import MPI

        self.mpi: Any = MPI
        self._comm, self.timeout = comm, timeout
        self._most = int(comm.Get_attr(MPI.TAG_UB))

    def send(self, data: Any, dest: int, tag: int) -> MpiMessage:
        """Start sending a one-dimensional uint8 tensor."""
        self._check(dest, tag)
        return MpiMessage(self, self._comm.Isend([_bytes(data), self.mpi.BYTE], dest, tag), data)

    def receive(self, data: Any, source: int | None, tag: int) -> MpiMessage:
        """Start receiving into a one-dimensional uint8 tensor, from `source`, or with None from any rank."""
        if source is not None:
            self._check(source, tag)
        peer = self.mpi.ANY_SOURCE if source is None else source
        return MpiMessage(self, self._comm.Irecv([_bytes(data), self.mpi.BYTE], peer, tag), data, receives=True)

    def _check(self, peer: int, tag: int) -> None:
        if not 0 <= peer < self._comm.Get_size():
            raise ValueError(f"{peer} is not a rank of this process group of {self._comm.Get_size()}")
        if not 0 <= tag <= self._most:
            raise ValueError(f"between hosts a tag must be 0 to {self._most} (a limit of MPI), not {tag}")

    def close(self) -> None:
        """Collective."""
        if self._comm is not None and not self.mpi.Is_finalized():
            self._comm.Free()
        self._comm = None


class MpiMessage:
    """A message in progress; a PendingCall.

    Attributes:
        sender: the sending rank, once it has completed.
    """

    def __init__(self, box: MpiMessages, request: Any, data: Any, receives: bool = False) -> None:
        self._box, self._request, self._data, self._receives = box, request, data, receives
        self._turn = threading.RLock()  # a signal handler may run while this thread holds it
        self._done = False
        self._wrong = ""
        self.sender = -1

    def test(self) -> bool:
        with self._turn:
            if not self._done:
                self._look()
        return self._done

    def _look(self) -> None:
        mpi = self._box.mpi
        status = mpi.Status()
        if not self._request.Test(status):
            return
        self._done = True
        if self._receives:
            self.sender = status.Get_source()
            received, expected = status.Get_count(mpi.BYTE), self._data.numel()
            if received != expected:
                self._wrong = f"a message of {received} bytes from rank {self.sender} for a tensor of {expected}"

    def wait(self, timeout: float | None = None) -> None:
        until = time.monotonic() + (self._box.timeout if timeout is None else timeout)
        looks, nap = 0, _NAP
        while not self.test():
            if time.monotonic() > until:
                raise TimeoutError("the message has not arrived in time")
            looks += 1
            time.sleep(0 if looks < _EAGER_LOOKS else nap)
            nap = nap if looks < _EAGER_LOOKS else min(2 * nap, _LONGEST_NAP)
        if self._wrong:
            raise ValueError(self._wrong)


def _bytes(x: Any) -> Any:
    """A tensor's memory as a NumPy array; not through x.numpy(), after which torch refuses to resize the storage."""
    return _core.HostBuffer(x).array(np.dtype(np.uint8))
