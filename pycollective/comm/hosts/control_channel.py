"""An exchange of short messages among the ranks of several hosts that names the missing ones.

Point to point through rank 0, on a separate communicator: a collective does not report which rank is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pycollective.comm.bootstrap.rendezvous import ranks_have
from pycollective.comm.bootstrap.sockets.frames import LENGTH_BYTES, pack, unpack
from pycollective.comm.host.team import HostTeam
from pycollective.comm.request import CallRequest
from pycollective.errors import CommunicatorError, Error, TimeoutError

_FRAME = 1024
"""Bytes of every message's first part: the length, and as much of the content as fits."""
_MOST = 1 << 30
_NAP, _LONGEST_NAP = 1e-3, 1e-2
_GRACE = 2.0
"""Other ranks wait this much longer than rank 0, to receive its list of missing ranks."""


class ControlChannel:
    """Messages of control between hosts, for one thread at a time. After a fault, every call raises it."""

    def __init__(self, backend: HostTeam, purpose: str) -> None:
        """Collective. `backend`: of the same ranks; the channel uses another one, named after its purpose."""
        group = backend.group
        own = backend.split(range(group.size), f"{group.name}/{purpose}")
        assert own is not None  # every rank is a member
        self._backend, self.rank, self.size = own, group.rank, group.size

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
            PeerLostError: a rank's process has ended. Error: reported by another rank.
        """
        self._backend.check()  # raises the error reported by another rank, if any
        try:
            return (self._serve if self.rank == 0 else self._ask)(data, seconds, meanwhile)
        except Error as error:
            self.send_error(error)
            raise

    def send_error(self, error: Error) -> None:
        """Make all other ranks raise this at their next check: this rank stops."""
        self._backend.fail(error)

    def close(self) -> None:
        self._backend.close()

    # -- internal --------------------------------------------------------------------------------------------------

    def _serve(self, data: bytes, seconds: float, meanwhile: Callable[[Sequence[int]], None]) -> list[bytes]:
        received = {rank: _Incoming(self._backend, rank, seconds) for rank in range(1, self.size)}
        self._await(received, seconds, meanwhile)
        answers = [data, *(received[rank].content for rank in range(1, self.size))]
        sent = {rank: _Outgoing(self._backend, rank, pack(answers), seconds) for rank in range(1, self.size)}
        self._await(sent, seconds, meanwhile)
        return answers

    def _ask(self, data: bytes, seconds: float, meanwhile: Callable[[Sequence[int]], None]) -> list[bytes]:
        sent, answer = _Outgoing(self._backend, 0, data, seconds), _Incoming(self._backend, 0, seconds)
        for one in (sent, answer):
            self._await({0: one}, seconds + _GRACE, lambda silent: meanwhile(()))
        return unpack(answer.content)

    def _await(
        self,
        messages: Mapping[int, _Transfer],
        seconds: float,
        meanwhile: Callable[[Sequence[int]], None],
    ) -> None:
        until, nap = time.monotonic() + seconds, _NAP
        while silent := [rank for rank, message in messages.items() if not message.advance(0.0)]:
            meanwhile(silent)
            if time.monotonic() > until:
                late = TimeoutError(_silence(silent, seconds))
                late.rank = silent[0]
                raise late
            messages[silent[0]].advance(nap)
            nap = min(2 * nap, _LONGEST_NAP)
        meanwhile(())


class _Transfer:
    """The parts of one message that are in progress."""

    def __init__(self, backend: HostTeam, peer: int, seconds: float) -> None:
        # Missing ranks are named by the exchange, not by the call that waits for one.
        self._backend, self._peer, self._seconds = backend, peer, seconds + 2 * _GRACE
        self._handles: list[Any] = []

    def _start(self, x: Any, out: Any) -> None:
        request = CallRequest("recv" if x is None else "send", x, out, root=self._peer, timeout=self._seconds)
        self._handles.append(self._backend.start(request))

    def advance(self, seconds: float) -> bool:
        """Return whether all parts have completed, after waiting for up to `seconds`."""
        while self._handles:
            handle = self._handles[0]
            if not handle.test():
                try:
                    handle.wait(seconds)
                except TimeoutError:
                    if not handle.test():
                        return False
            handle.wait(0.0)  # raises its error
            del self._handles[0]
        return True


class _Outgoing(_Transfer):
    def __init__(self, backend: HostTeam, peer: int, content: bytes, seconds: float) -> None:
        super().__init__(backend, peer, seconds)
        padded = (len(content).to_bytes(LENGTH_BYTES, "little") + content).ljust(_FRAME, b"\0")
        whole = np.frombuffer(bytearray(padded), np.uint8)
        self._start(whole[:_FRAME], None)
        if len(whole) > _FRAME:
            self._start(whole[_FRAME:], None)


class _Incoming(_Transfer):
    def __init__(self, backend: HostTeam, peer: int, seconds: float) -> None:
        super().__init__(backend, peer, seconds)
        self._frame, self._rest = np.empty(_FRAME, np.uint8), np.empty(0, np.uint8)
        self._length = -1
        self._start(None, self._frame)

    def advance(self, seconds: float) -> bool:
        if not super().advance(seconds):
            return False
        if self._length < 0:
            self._length = int.from_bytes(self._frame[:LENGTH_BYTES].tobytes(), "little")
            if self._length > _MOST:
                raise CommunicatorError(f"rank {self._peer} announces a control message of {self._length} bytes")
            missing = self._length + LENGTH_BYTES - _FRAME
            if missing > 0:
                self._rest = np.empty(missing, np.uint8)
                self._start(None, self._rest)
                return super().advance(seconds)
        return True

    @property
    def content(self) -> bytes:
        return (self._frame.tobytes() + self._rest.tobytes())[LENGTH_BYTES : LENGTH_BYTES + self._length]


def _silence(ranks: list[int], seconds: float) -> str:
    return (
        f"{ranks_have(ranks)} not answered for {seconds:g} s: the process is stopped or out of reach, or "
        "something in it holds the interpreter"
    )
