"""Short messages among the ranks of several hosts: an exchange that names missing ranks, and errors at any time.

Point to point through rank 0, on a separate MPI communicator: MPI's collectives do not report which rank is missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from pycollective.comm.bootstrap.frames import pack, unpack
from pycollective.comm.bootstrap.mpi import import_mpi
from pycollective.comm.bootstrap.rendezvous import name_ranks
from pycollective.comm.control import FAULTS, Fault
from pycollective.comm.hosts import mpi_wait
from pycollective.errors import CommunicatorError, Error, PeerLostError, TimeoutError

_SAID, _ANSWER, _FAULT = 1, 2, 3
_EAGER = 1e-3
_GRACE = 2.0
"""Other ranks wait this much longer than rank 0, to receive its list of missing ranks."""


class ControlChannel:
    """For one thread at a time. After a fault, every call raises it."""

    def __init__(self, comm: Any) -> None:
        """`comm`: an mpi4py communicator without other users."""
        self._mpi, self._comm = import_mpi(), comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.fault: Error | None = None
        self._seconds = 0.0  # of the exchange in progress
        self._notices: list[Any] = []

    def exchange(
        self, data: bytes, seconds: float, meanwhile: Callable[[Sequence[int]], None] = lambda silent: None
    ) -> list[bytes]:
        """Collective: every rank's data, in rank order.

        Args:
            data: any bytes.
            seconds: after which silent ranks count as missing.
            meanwhile: called repeatedly while waiting, on rank 0 with the silent ranks.

        Raises:
            TimeoutError: ranks were silent for `seconds`; names them, on all ranks.
            PeerLostError: MPI reports a lost rank. Error: reported by another rank.
        """
        if self.fault is not None:
            raise self.fault
        self._seconds = seconds
        try:
            return (self._serve if self.rank == 0 else self._ask)(data, seconds, meanwhile)
        except Error as error:
            self._end(error)
            if isinstance(error, TimeoutError):  # MPI_Finalize would wait for the missing rank
                mpi_wait.abandon(self._comm)
            raise
        except Exception as error:
            self._end(mpi_wait.fault_of(self._comm, error, "the engine's agreement"))
            assert self.fault is not None
            raise self.fault from error

    def check(self) -> None:
        """Raise the error reported by another rank, if any."""
        if self.fault is not None:
            raise self.fault
        try:
            mpi_wait.check_peers(self._comm, "the engine's agreement")
            message = self._take(self._mpi.ANY_SOURCE, _FAULT)
        except PeerLostError as error:
            self.fault = error
            raise
        except Exception as error:
            self.fault = mpi_wait.fault_of(self._comm, error, "the engine's agreement")
            raise self.fault from error
        if message is not None:
            self.fault = _reported(*message)
            raise self.fault

    def tell(self, error: Error) -> None:
        """Make all other ranks raise this at their next check: this rank stops."""
        if self.fault is None:
            self._end(error)

    def close(self) -> None:
        """Collective, except after a fault."""
        if self.fault is None and not self._mpi.Is_finalized():
            self._comm.Free()
        self.fault = self.fault or CommunicatorError("the engine was shut down")

    # -- internal --------------------------------------------------------------------------------------------------

    def _serve(self, data: bytes, seconds: float, meanwhile: Callable[[Sequence[int]], None]) -> list[bytes]:
        blobs = {0: data}

        def silent() -> list[int]:
            return [rank for rank in range(self.size) if rank not in blobs]

        def done() -> bool:
            self.check()
            while (message := self._take(self._mpi.ANY_SOURCE, _SAID)) is not None:
                blobs[message[0]] = message[1]
            missing = silent()
            meanwhile(missing)
            return not missing

        if not mpi_wait.until(done, seconds, _EAGER):
            raise TimeoutError(_silence(silent(), seconds))
        received = [blobs[rank] for rank in range(self.size)]
        answer = pack(received)
        sent = [self._comm.Isend([answer, self._mpi.BYTE], rank, _ANSWER) for rank in range(1, self.size)]
        if not mpi_wait.until(lambda: bool(self._mpi.Request.Testall(sent)), seconds, _EAGER):
            mpi_wait.abandon(sent)
            late = [rank for rank, request in enumerate(sent, 1) if not request.Test()]
            raise TimeoutError(_silence(late, seconds))
        return received

    def _ask(self, data: bytes, seconds: float, meanwhile: Callable[[Sequence[int]], None]) -> list[bytes]:
        sent = self._comm.Isend([data, self._mpi.BYTE], 0, _SAID)
        answer: list[bytes] = []

        def done() -> bool:
            self.check()
            meanwhile(())
            sent.Test()
            message = self._take(0, _ANSWER)
            if message is not None:
                answer.append(message[1])
            return message is not None

        if not mpi_wait.until(done, seconds + _GRACE, _EAGER):
            mpi_wait.abandon(sent)
            raise TimeoutError(_silence([0], seconds))
        self._complete(sent, 0)
        return unpack(answer[0])

    def _take(self, source: int, tag: int) -> tuple[int, bytes] | None:
        """(sender, content) of a message that has arrived."""
        status = self._mpi.Status()
        message = self._comm.Improbe(source, tag, status)
        if message is None:
            return None
        content = bytearray(status.Get_count(self._mpi.BYTE))
        request, sender = message.Irecv([content, self._mpi.BYTE]), status.Get_source()
        self._complete(request, sender)
        return sender, bytes(content)

    def _complete(self, request: Any, peer: int) -> None:
        if not mpi_wait.until(request.Test, self._seconds, _EAGER):
            mpi_wait.abandon(request)
            raise TimeoutError(_silence([peer], self._seconds))

    def _end(self, error: Error) -> None:
        if self.fault is not None:
            return  # the other ranks were notified
        self.fault = error
        if isinstance(error, PeerLostError):  # MPI notifies all ranks
            return
        text = FAULTS.encode(Fault.of(error))
        with contextlib.suppress(Exception):
            self._notices = [
                self._comm.Isend([text, self._mpi.BYTE], rank, _FAULT) for rank in range(self.size) if rank != self.rank
            ]
            mpi_wait.until(lambda: bool(self._mpi.Request.Testall(self._notices)), 0.1)


def _reported(sender: int, text: bytes) -> Error:
    """The error reported by a rank, or the error of decoding it."""
    try:
        return FAULTS.decode(text, sender).error()
    except CommunicatorError as error:
        return error


def _silence(ranks: list[int], seconds: float) -> str:
    have = "has" if len(ranks) == 1 else "have"
    return (
        f"{name_ranks(ranks)} {have} not answered for {seconds:g} s: the process is stopped or out of reach, or "
        "something in it holds the interpreter"
    )
