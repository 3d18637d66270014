"""Single-host rendezvous: ranks connect through an abstract UNIX socket and exchange bytes through rank 0.

An abstract socket exists only in the kernel, so no file is left behind whichever signal ends a rank. Every
frame is `!BQ` (kind, length) and its payload. Rank 0 serves inline, inside its own `allgather`: there is no thread,
and nothing to clean up after a fork.

Any user of the host may bind or connect to an abstract name. So both ends check the other's uid (SO_PEERCRED), rank 0
takes another name if another user holds the first, and a silent, slow or invalid connection delays no rank: memory is
allocated as bytes arrive, and a newcomer has a bounded time and number of bytes to introduce itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

from pycollective.comm.bootstrap.frames import LENGTH_BYTES, Reader, frame, pack, receive, unpack
from pycollective.errors import BootstrapError

DEFAULT_TIMEOUT = 120.0
"""Seconds that a rank waits for the others to arrive (environment: PYCOLLECTIVE_INIT_TIMEOUT)."""
NAMES = 16
"""Possible names of the socket: rank 0 takes the first one not held by another user."""
MOST_BYTES = 16 << 20
"""Maximum bytes of a rank's data in one `allgather`."""

_VERSION = 2
_HELLO = struct.Struct("!III")  # version, rank, size
_HELLO_KIND, _DATA, _ERROR, _WELCOME = 1, 2, 3, 4
_MOST_TEXT = 1 << 16  # bytes of an error
_BACKLOG = 1024
_MOST_NEWCOMERS = 64
_HELLO_SECONDS = 5.0
_BIND_SECONDS = 0.2  # between bind and listen, rank 0 looks like another user's process
_GRACE = 2.0  # other ranks wait this much longer than rank 0, to receive its list of missing ranks
_State = TypeVar("_State")


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 1, 2, 5` or, past eight of them, `ranks 1, 2, ... (12 of them)`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}" + (f", ... ({len(ranks)} of them)" if len(ranks) > 8 else "")


class SocketBootstrap:
    """Bootstrap over one abstract UNIX socket; the constructor returns when all `size` ranks have connected.

    Args:
        name: the same on all ranks; any string, without the leading NUL of abstract names.
        rank: this rank, 0 <= rank < size. size: number of ranks.
        kind: reported as `.kind`. timeout: seconds, for connecting and for each later round.
        hint: a sentence appended to the error when ranks are missing.

    Raises:
        BootstrapError: ranks missing at the deadline (named), a rank's process ended, two processes claiming
            one rank, ranks that disagree on `size`, or other users holding all names of the socket.

    Not thread-safe: one caller at a time. `allgather` is collective over all ranks.
    """

    def __init__(
        self, name: str, rank: int, size: int, *, kind: str, timeout: float = DEFAULT_TIMEOUT, hint: str = ""
    ) -> None:
        self.rank, self.size, self.kind = rank, size, kind
        self._timeout, self._hint = timeout, hint
        first = "\0pycollective/" + name
        self._addresses = [first, *(f"{first}~{number}" for number in range(1, NAMES))]
        self._peers: dict[int, socket.socket] = {}  # rank 0: one connection per rank; others: {0: rank 0}
        self._failure: str | None = None
        self._closed = False
        if size > 1:
            try:
                self._connect_all()
            except BaseException:
                self.close()
                raise

    def allgather(self, data: bytes, timeout: float | None = None) -> list[bytes]:
        """Every rank's `data`, in rank order; returns when all ranks have called it: it is a barrier.

        Raises:
            BootstrapError: see above. ValueError: `data` has more than MOST_BYTES.
        """
        if self._failure is not None:
            raise BootstrapError(self._failure)
        if self._closed:
            raise BootstrapError("this bootstrap is closed")
        if len(data) > MOST_BYTES:
            raise ValueError(f"{len(data)} bytes are more than the {MOST_BYTES} that a rank may send")
        if self.size == 1:
            return [data]
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        try:
            return self._serve(data, deadline) if self.rank == 0 else self._ask(data, deadline)
        except BootstrapError as error:
            self._failure = str(error)
            raise

    def close(self) -> None:
        """Close every connection; may be called twice."""
        self._closed = True
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()

    # -- connecting ----------------------------------------------------------------------------------------

    def _connect_all(self) -> None:
        deadline = time.monotonic() + self._timeout
        if self.rank == 0:
            self._accept_all(deadline)
        else:
            self._peers[0] = self._connect(deadline)
        self.allgather(b"", timeout=max(0.0, deadline - time.monotonic()))

    def _connect(self, deadline: float) -> socket.socket:
        """Connect to rank 0, which may not have started yet, and may have taken any of the names."""
        pause, stranger = 0.0002, ""
        while True:
            for address in self._addresses:
                peer = _dial(address)
                if peer is None:
                    continue
                try:
                    if (uid := peer_uid(peer)) != os.geteuid():
                        stranger = f"; the rendezvous socket of this job is held by another user (uid {uid})"
                    elif self._introduce(peer, deadline):
                        return peer
                except BaseException:
                    peer.close()
                    raise
                peer.close()
            if time.monotonic() >= deadline:
                raise BootstrapError(self._missing_text([0]) + stranger)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.01)

    def _introduce(self, peer: socket.socket, deadline: float) -> bool:
        """Introduce this rank to a process of this user; False if it closes: it is not, or no longer, rank 0."""
        try:
            peer.send(frame(_HELLO_KIND, _HELLO.pack(_VERSION, self.rank, self.size)))
            kind, payload = receive(peer, Reader(_MOST_TEXT), deadline)
        except TimeoutError:
            raise BootstrapError(self._missing_text([0])) from None
        except (OSError, EOFError, ValueError):
            return False
        if kind == _ERROR:
            raise BootstrapError(payload.decode(errors="replace"))
        return kind == _WELCOME

    def _listen(self) -> socket.socket:
        """Rank 0: a socket with the first name not held by another user."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if not any(_bind(listener, address) for address in self._addresses):
                raise BootstrapError(f"rank 0 cannot open the rendezvous socket: other users hold its {NAMES} names")
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            return listener
        except BaseException:
            listener.close()
            raise

    def _accept_all(self, deadline: float) -> None:
        """Rank 0: accept and check all ranks; the listening socket is closed on return."""
        with _Lobby(self._listen()) as lobby:
            while len(self._peers) < self.size - 1:
                newcomer = lobby.next(deadline)
                if newcomer is None:
                    missing = [r for r in range(1, self.size) if r not in self._peers]
                    raise BootstrapError(self._refuse_all(self._missing_text(missing)))
                self._admit(*newcomer)

    def _admit(self, peer: socket.socket, hello: tuple[int, int, int]) -> None:
        """Rank 0: admit a newcomer; an invalid rank is an error on all ranks."""
        version, rank, size = hello
        trouble = ""
        if version != _VERSION:
            trouble = f"a rank uses rendezvous version {version}, rank 0 uses {_VERSION}: mixed installations"
        elif size != self.size:
            trouble = f"rank {rank} was given a size of {size}, rank 0 a size of {self.size}"
        elif not 0 < rank < self.size or rank in self._peers:
            trouble = f"two processes claim rank {rank}"
        with contextlib.suppress(OSError):  # a newcomer that has closed is detected in the first round
            peer.send(frame(_ERROR, trouble.encode()) if trouble else frame(_WELCOME, b""))
        if trouble:
            peer.close()
            raise BootstrapError(self._refuse_all(trouble))
        self._peers[rank] = peer

    # -- rounds --------------------------------------------------------------------------------------------

    def _serve(self, data: bytes, deadline: float) -> list[bytes]:
        """Rank 0: collect from all ranks, in the order of arrival, then answer all."""
        blobs: dict[int, bytes] = {0: data}

        def collect(rank: int, reader: Reader) -> bool:
            found = reader.read(self._peers[rank])
            if found is None:
                return False
            kind, blobs[rank] = found
            if kind != _DATA:
                raise ValueError(f"a frame of kind {kind}")
            return True

        self._with_all(selectors.EVENT_READ, lambda: Reader(MOST_BYTES), collect, deadline)
        result = [blobs[r] for r in range(self.size)]
        answer = frame(_DATA, pack(result))

        def reply(rank: int, left: list[memoryview]) -> bool:
            with contextlib.suppress(BlockingIOError):
                left[0] = left[0][self._peers[rank].send(left[0]) :]
            return not left[0]

        self._with_all(selectors.EVENT_WRITE, lambda: [memoryview(answer)], reply, deadline)
        return result

    def _with_all(
        self, event: int, state: Callable[[], _State], step: Callable[[int, _State], bool], deadline: float
    ) -> None:
        """Rank 0: `step` for each rank whenever its socket is ready, until it is True; no rank waits for another."""
        with selectors.DefaultSelector() as selector:
            for rank, peer in self._peers.items():
                selector.register(peer, event, (rank, state()))
            while missing := [key.data[0] for key in selector.get_map().values()]:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready and time.monotonic() >= deadline:
                    raise BootstrapError(self._refuse_all(self._missing_text(sorted(missing))))
                for key, _ in ready:
                    rank, mine = key.data
                    try:
                        done = step(rank, mine)
                    except (OSError, EOFError, ValueError):
                        raise BootstrapError(self._refuse_all(_gone(rank))) from None
                    if done:
                        selector.unregister(key.fileobj)

    def _ask(self, data: bytes, deadline: float) -> list[bytes]:
        """Any other rank: send data, wait for rank 0's answer or error."""
        peer = self._peers[0]
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # an error may have arrived already
                peer.settimeout(max(1e-3, deadline - time.monotonic()))
                peer.sendall(frame(_DATA, data))
            most = self.size * (MOST_BYTES + LENGTH_BYTES)
            kind, payload = receive(peer, Reader(most), deadline + _GRACE)
            result = unpack(payload) if kind != _ERROR else []
        except TimeoutError:
            raise BootstrapError(self._missing_text([0])) from None
        except (OSError, EOFError, ValueError):
            raise BootstrapError(_gone(0)) from None
        if kind == _ERROR:
            raise BootstrapError(payload.decode(errors="replace"))
        if len(result) != self.size:
            raise BootstrapError(f"rank 0 answered with the data of {len(result)} ranks, not of {self.size}")
        return result

    def _refuse_all(self, message: str) -> str:
        """Rank 0: send the error to all connected ranks, and return the message."""
        for peer in self._peers.values():
            with contextlib.suppress(OSError):  # the receiver has closed, or does not read
                peer.send(frame(_ERROR, message.encode()))
        return message

    def _missing_text(self, missing: Sequence[int]) -> str:
        have = "has" if len(missing) == 1 else "have"
        text = f"{name_ranks(missing)} of {self.size} {have} not arrived at the rendezvous within the deadline"
        return text + (f"; {self._hint}" if self._hint else "")


class _Lobby:
    """Rank 0's listening socket, and connections that have not introduced themselves yet.

    Other users' are closed at once. This user's are limited in number and time; the oldest is closed first.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._waiting: dict[socket.socket, tuple[Reader, float]] = {}  # and deadline; in the order of arrival

    def __enter__(self) -> _Lobby:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for peer in [*self._waiting]:
            self._dismiss(peer)
        self._selector.close()
        self._listener.close()

    def next(self, deadline: float) -> tuple[socket.socket, tuple[int, int, int]] | None:
        """A newcomer with its version, rank and size; None if there is none until the deadline."""
        while True:
            for peer, (reader, _) in [*self._waiting.items()]:  # data sent at once arrives with the connection
                hello = self._hear(peer, reader)
                if hello is not None:
                    return peer, hello
            now = time.monotonic()
            if now >= deadline:
                return None
            for peer, (_, until) in [*self._waiting.items()]:
                if now >= until:
                    self._dismiss(peer)
            first = min([deadline, *(until for _, until in self._waiting.values())])
            if any(key.fileobj is self._listener for key, _ in self._selector.select(max(0.0, first - now))):
                self._accept()

    def _accept(self) -> None:
        for _ in range(_MOST_NEWCOMERS):
            try:
                peer, _ = self._listener.accept()
            except OSError:  # none left, one closed meanwhile, or too many open files
                return
            if peer_uid(peer) != os.geteuid():
                peer.close()
                continue
            if len(self._waiting) >= _MOST_NEWCOMERS:
                self._dismiss(next(iter(self._waiting)))
            peer.setblocking(False)
            self._waiting[peer] = Reader(_HELLO.size), time.monotonic() + _HELLO_SECONDS
            self._selector.register(peer, selectors.EVENT_READ)

    def _hear(self, peer: socket.socket, reader: Reader) -> tuple[int, int, int] | None:
        try:
            found = reader.read(peer)
            if found is None:
                return None
            kind, payload = found
            if kind != _HELLO_KIND or len(payload) != _HELLO.size:
                raise ValueError("no introduction")
        except (OSError, EOFError, ValueError):
            self._dismiss(peer)
            return None
        self._selector.unregister(peer)
        del self._waiting[peer]
        version, rank, size = _HELLO.unpack(payload)
        return version, rank, size

    def _dismiss(self, peer: socket.socket) -> None:
        self._selector.unregister(peer)
        del self._waiting[peer]
        peer.close()


def _dial(address: str) -> socket.socket | None:
    """A connection to an address, nonblocking; None if no process listens there, or its backlog is full."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.setblocking(False)
        peer.connect(address)
    except (ConnectionRefusedError, BlockingIOError):
        peer.close()
        return None
    except BaseException:
        peer.close()
        raise
    return peer


def _bind(listener: socket.socket, address: str) -> bool:
    """Bind an address; False if another user has it.

    Raises:
        BootstrapError: this user has bound it already.
    """
    until = time.monotonic() + _BIND_SECONDS
    while True:
        try:
            listener.bind(address)
            return True
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise BootstrapError(f"rank 0 cannot open the rendezvous socket: {error}") from error
            holder = _dial(address)
        if holder is not None:
            with holder:
                if peer_uid(holder) != os.geteuid():
                    return False
            raise BootstrapError(
                "rank 0 cannot open the rendezvous socket: its name is in use; is another job with the same name, or "
                "a second process that claims rank 0, running on this host?"
            )
        if time.monotonic() >= until:
            return False
        time.sleep(0.002)


def _gone(rank: int) -> str:
    return f"rank {rank} left the rendezvous: its process ended or closed its communicator"


def peer_uid(peer: socket.socket) -> int:
    """The user ID of the process at the other end of a UNIX socket."""
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)
