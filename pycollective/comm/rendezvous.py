"""Single-host rendezvous: ranks meet at an abstract UNIX socket and exchange bytes through rank 0.

An abstract socket lives in the kernel alone, so no file is left behind whatever signal ends a rank. Every
frame is `!BQ` (kind, length) and its payload. Rank 0 serves inline, inside its own `allgather`: no thread,
nothing to forget across a fork. Both ends check the other's uid (SO_PEERCRED), because anybody on the host
may bind or connect to an abstract name.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence

from pycollective.errors import BootstrapError

DEFAULT_TIMEOUT = 120.0
"""Seconds that a rank waits for the others to arrive (environment: PYCOLLECTIVE_INIT_TIMEOUT)."""

_VERSION = 1
_FRAME = struct.Struct("!BQ")
_HELLO = struct.Struct("!III")  # version, rank, size
_LENGTH = struct.Struct("!Q")
_HELLO_KIND, _DATA, _ERROR = 1, 2, 3
_MAX_FRAME = 1 << 32
_GRACE = 2.0  # a rank waits this much longer than rank 0, so that it hears rank 0's verdict with the names in it


def pack(blobs: Sequence[bytes]) -> bytes:
    """One byte string holding every blob of `blobs` in order (the inverse of `unpack`)."""
    return b"".join(_LENGTH.pack(len(b)) + b for b in blobs)


def unpack(data: bytes) -> list[bytes]:
    """The blobs that `pack` joined."""
    blobs, at = [], 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        blobs.append(data[at : at + length])
        at += length
    return blobs


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 1, 2, 5` or, past eight of them, `ranks 1, 2, ... (12 of them)`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}" + (f", ... ({len(ranks)} of them)" if len(ranks) > 8 else "")


class SocketBootstrap:
    """Bootstrap over one abstract UNIX socket; the constructor returns when all `size` ranks have met.

    Args:
        name: what the ranks agree on; any string, without the leading NUL of abstract names.
        rank: this rank, 0 <= rank < size. size: number of ranks.
        kind: reported as `.kind`. timeout: seconds, for the meeting and for each later round.
        hint: a sentence appended to the error when ranks are missing.

    Raises:
        BootstrapError: ranks missing at the deadline (named), a rank's process gone, two processes claiming
            one rank, ranks that disagree on `size`, or a socket owned by another user.

    Not thread-safe: one caller at a time. `allgather` is collective over all ranks.
    """

    def __init__(
        self, name: str, rank: int, size: int, *, kind: str, timeout: float = DEFAULT_TIMEOUT, hint: str = ""
    ) -> None:
        self.rank, self.size, self.kind = rank, size, kind
        self._timeout, self._hint = timeout, hint
        self._address = "\0pycollective/" + name
        self._peers: dict[int, socket.socket] = {}  # rank 0: one connection a rank; others: {0: rank 0}
        self._failure: str | None = None
        self._closed = False
        if size > 1:
            try:
                self._meet()
            except BaseException:
                self.close()
                raise

    def allgather(self, data: bytes, timeout: float | None = None) -> list[bytes]:
        """Every rank's `data`, in rank order; returns when all ranks have called it: it is a barrier."""
        if self._failure is not None:
            raise BootstrapError(self._failure)
        if self._closed:
            raise BootstrapError("this bootstrap is closed")
        if self.size == 1:
            return [data]
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        try:
            return self._serve(data, deadline) if self.rank == 0 else self._ask(data, deadline)
        except BootstrapError as error:
            self._failure = str(error)
            raise

    def close(self) -> None:
        """Drop every connection; may be called twice."""
        self._closed = True
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()

    # -- meeting -------------------------------------------------------------------------------------------

    def _meet(self) -> None:
        deadline = time.monotonic() + self._timeout
        if self.rank == 0:
            self._accept_all(deadline)
        else:
            self._peers[0] = self._connect(deadline)
        self.allgather(b"", timeout=max(0.0, deadline - time.monotonic()))

    def _connect(self, deadline: float) -> socket.socket:
        """Connect to rank 0, which may not have started yet."""
        pause = 0.0002
        while True:
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                peer.connect(self._address)
                break
            except (ConnectionRefusedError, BlockingIOError):
                peer.close()
            except BaseException:
                peer.close()
                raise
            if time.monotonic() >= deadline:
                raise BootstrapError(self._missing_text([0]))
            time.sleep(pause)
            pause = min(pause * 1.5, 0.01)
        if peer_uid(peer) != os.getuid():
            peer.close()
            raise BootstrapError(f"the rendezvous socket of this job is held by another user (uid {peer_uid(peer)})")
        _send(peer, _HELLO_KIND, _HELLO.pack(_VERSION, self.rank, self.size), deadline)
        return peer

    def _accept_all(self, deadline: float) -> None:
        """Rank 0: accept and check everyone; the listening socket is gone when this returns."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            try:
                listener.bind(self._address)
            except OSError as error:
                raise BootstrapError(
                    f"rank 0 cannot open the rendezvous socket: {error.strerror}; is another job with "
                    "the same name, or a second process that calls itself rank 0, running on this host?"
                ) from error
            listener.listen(self.size + 16)
            while len(self._peers) < self.size - 1:
                listener.settimeout(max(1e-3, deadline - time.monotonic()))
                try:
                    peer, _ = listener.accept()
                except TimeoutError:
                    missing = [r for r in range(1, self.size) if r not in self._peers]
                    raise BootstrapError(self._refuse_all(self._missing_text(missing))) from None
                if peer_uid(peer) != os.getuid():
                    peer.close()
                    continue
                self._admit(peer, deadline)

    def _admit(self, peer: socket.socket, deadline: float) -> None:
        """Check one newcomer's hello; a stray connection is dropped, a wrong rank is everybody's error."""
        try:
            kind, payload = _receive(peer, min(deadline, time.monotonic() + 5.0))
            version, rank, size = _HELLO.unpack(payload)
        except (OSError, EOFError, struct.error, ValueError):
            peer.close()
            return
        trouble = ""
        if kind != _HELLO_KIND or version != _VERSION:
            trouble = f"a rank speaks rendezvous version {version}, rank 0 speaks {_VERSION}: mixed installations"
        elif size != self.size:
            trouble = f"rank {rank} was told that there are {size} ranks, rank 0 that there are {self.size}"
        elif not 0 < rank < self.size or rank in self._peers:
            trouble = f"two processes call themselves rank {rank}"
        if trouble:
            _quietly(lambda: _send(peer, _ERROR, trouble.encode(), time.monotonic() + 0.5))
            peer.close()
            raise BootstrapError(self._refuse_all(trouble))
        self._peers[rank] = peer

    # -- rounds --------------------------------------------------------------------------------------------

    def _serve(self, data: bytes, deadline: float) -> list[bytes]:
        """Rank 0: collect from everyone, in the order of arrival, then answer everyone."""
        blobs: dict[int, bytes] = {0: data}
        with selectors.DefaultSelector() as selector:
            for rank, peer in self._peers.items():
                selector.register(peer, selectors.EVENT_READ, rank)
            while len(blobs) < self.size:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready and time.monotonic() >= deadline:
                    missing = [r for r in range(self.size) if r not in blobs]
                    raise BootstrapError(self._refuse_all(self._missing_text(missing)))
                for key, _ in ready:
                    rank = int(key.data)
                    try:
                        blobs[rank] = _receive(self._peers[rank], deadline)[1]
                    except (OSError, EOFError, ValueError):
                        raise BootstrapError(self._refuse_all(_gone(rank))) from None
                    selector.unregister(key.fileobj)
        result = [blobs[r] for r in range(self.size)]
        answer = pack(result)
        for rank, peer in self._peers.items():
            try:
                _send(peer, _DATA, answer, deadline)
            except OSError:
                raise BootstrapError(self._refuse_all(_gone(rank))) from None
        return result

    def _ask(self, data: bytes, deadline: float) -> list[bytes]:
        """Any other rank: hand in, wait for rank 0's answer or verdict."""
        peer = self._peers[0]
        try:
            _quietly(lambda: _send(peer, _DATA, data, deadline))  # a verdict may already lie in the socket: read on
            kind, payload = _receive(peer, deadline + _GRACE)
        except TimeoutError:
            raise BootstrapError(self._missing_text([0])) from None
        except (OSError, EOFError):
            raise BootstrapError(_gone(0)) from None
        if kind == _ERROR:
            raise BootstrapError(payload.decode())
        return unpack(payload)

    def _refuse_all(self, message: str) -> str:
        """Rank 0: tell everyone who is here why the meeting failed, and return the message."""
        for peer in self._peers.values():
            _quietly(lambda peer=peer: _send(peer, _ERROR, message.encode(), time.monotonic() + 0.5))  # type: ignore[misc]
        return message

    def _missing_text(self, missing: Sequence[int]) -> str:
        have = "has" if len(missing) == 1 else "have"
        text = f"{name_ranks(missing)} of {self.size} {have} not arrived at the rendezvous within the deadline"
        return text + (f"; {self._hint}" if self._hint else "")


def _gone(rank: int) -> str:
    return f"rank {rank} left the rendezvous: its process ended or closed its communicator"


def _quietly(action: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):  # the receiver is gone; the error that is about to be raised says more
        action()


def peer_uid(peer: socket.socket) -> int:
    """The user whose process is at the other end of a UNIX socket."""
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)


def _send(peer: socket.socket, kind: int, payload: bytes, deadline: float) -> None:
    peer.settimeout(max(1e-3, deadline - time.monotonic()))
    peer.sendall(_FRAME.pack(kind, len(payload)) + payload)


def _receive(peer: socket.socket, deadline: float) -> tuple[int, bytes]:
    """One frame. Raises TimeoutError at the deadline, EOFError when the peer is gone, ValueError for junk."""
    kind, length = _FRAME.unpack(_read_exactly(peer, _FRAME.size, deadline))
    if length > _MAX_FRAME:
        raise ValueError(f"a frame of {length} bytes")
    return kind, _read_exactly(peer, length, deadline)


def _read_exactly(peer: socket.socket, length: int, deadline: float) -> bytes:
    buffer = bytearray(length)
    view, done = memoryview(buffer), 0
    while done < length:
        peer.settimeout(max(1e-3, deadline - time.monotonic()))
        got = peer.recv_into(view[done:])
        if got == 0:
            raise EOFError
        done += got
    return bytes(buffer)
