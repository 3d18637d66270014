"""Rendezvous: every rank is connected with rank 0, and all exchange bytes through it.

Every frame is `!BQ` (kind, length) and its payload. Rank 0 serves inline, inside its own `allgather`: there is no
thread, and nothing to clean up after a fork. How connections are made, and who may connect, is in one_host.py and
tcp.py. A silent, slow or invalid connection delays no rank (sockets/lobby.py), and memory is allocated as bytes arrive.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pycollective.comm.bootstrap.sockets.descriptors import are_used_up, raise_limit, refusal
from pycollective.comm.bootstrap.sockets.frames import LENGTH_BYTES, Reader, frame, pack, receive, unpack
from pycollective.comm.bootstrap.sockets.lobby import Lobby
from pycollective.comm.bootstrap.sockets.this_host import host_name
from pycollective.errors import BootstrapError

DEFAULT_TIMEOUT = 120.0
"""Seconds that a rank waits for the others to arrive (environment: PYCOLLECTIVE_INIT_TIMEOUT)."""
MOST_BYTES = 16 << 20
"""Maximum bytes of a rank's data in one `allgather`."""

_VERSION = 3
_HELLO = struct.Struct("!III")
_HELLO_KIND, _DATA, _ERROR, _WELCOME, _ENDED = 1, 2, 3, 4, 5
_MOST_REASON = 1 << 10  # bytes, of the end of a rank
_MOST_TEXT = 1 << 16  # bytes of an error
_GRACE = 2.0  # other ranks wait this much longer than rank 0, to receive its list of missing ranks
_LOOK_SECONDS = 0.25
_SHOWN = 4  # silent ranks described in an error


@dataclass(frozen=True)
class Hello:
    """How a rank introduces itself."""

    version: int
    rank: int
    size: int
    ended: str = ""
    """Why it will not come, as another process reports. Empty: it has come."""


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 1, 2, 5` or, past eight of them, `ranks 1, 2, ... (12 of them)`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}" + (f", ... ({len(ranks)} of them)" if len(ranks) > 8 else "")


def ranks_have(ranks: Sequence[int], size: int = 0) -> str:
    """`rank 3 has` or `ranks 1, 2, 5 have`; with the number of all ranks `rank 3 of 8 has`."""
    of = f" of {size}" if size else ""
    return f"{name_ranks(ranks)}{of} {'has' if len(ranks) == 1 else 'have'}"


class RendezvousBootstrap(ABC):
    """Bootstrap over connections of all ranks to rank 0; the constructor returns when all have connected.

    Args:
        rank: this rank, 0 <= rank < size. size: number of ranks.
        kind: reported as `.kind`. timeout: seconds, for connecting and for each later round.
        hint: a sentence appended to the error when ranks are missing.
        look: called several times a second while ranks connect: why one of them never will, as far as is known
            elsewhere; empty if nothing is.

    Raises:
        BootstrapError: ranks missing at the deadline (named), a rank's process ended, two processes claiming
            one rank, ranks that disagree on `size`, or what `look` returns.

    Not thread-safe: one caller at a time. `allgather` is collective over all ranks.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        kind: str,
        timeout: float = DEFAULT_TIMEOUT,
        hint: str = "",
        look: Callable[[], str] = str,
    ) -> None:
        self.rank, self.size, self.kind = rank, size, kind
        self._timeout, self._hint, self._look = timeout, hint, look
        self._looked = time.monotonic()
        self._peers: dict[int, socket.socket] = {}  # rank 0: one connection per rank; others: {0: rank 0}
        self._failure: str | None = None
        self._closed = False
        if size > 1:
            raise_limit()
            try:
                self._connect_all()
            except OSError as error:
                self.close()
                raise self._explained(error) from None
            except BaseException:
                self.close()
                raise

    @abstractmethod
    def _listen(self) -> Lobby[Hello]:
        """Rank 0: where the others connect; it authenticates them."""

    @abstractmethod
    def _connect(self, deadline: float) -> socket.socket:
        """Any other rank: a connection to rank 0 that `_introduce` has accepted."""

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

    def give_up(self, error: BaseException) -> None:
        """This rank cannot continue: all ranks that call `allgather` raise this instead of waiting for it."""
        here = "" if isinstance(error, BootstrapError) else f"rank {self.rank} on host {host_name()}: "
        reason = f"{here}{error}"
        if self._failure is None and self.rank == 0:
            self._refuse_all(reason)
        elif self._failure is None and self._peers:
            with contextlib.suppress(OSError):  # rank 0 has ended too
                self._peers[0].send(frame(_ERROR, reason.encode()[:_MOST_TEXT]))
        self._failure = self._failure or reason

    def __enter__(self) -> RendezvousBootstrap:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.give_up(error)
        self.close()

    # -- connecting ----------------------------------------------------------------------------------------

    def _connect_all(self) -> None:
        deadline = time.monotonic() + self._timeout
        if self.rank == 0:
            self._accept_all(deadline)
        else:
            self._peers[0] = self._connect(deadline)
        self.allgather(b"", timeout=max(0.0, deadline - time.monotonic()))

    def _raise_if_known(self) -> None:
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            if reason := self._look():
                raise BootstrapError(reason)

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

    def _accept_all(self, deadline: float) -> None:
        """Rank 0: accept and check all ranks; the listening socket is closed on return."""
        with contextlib.closing(self._listen()) as lobby:
            while len(self._peers) < self.size - 1:
                try:
                    for newcomer in lobby.serve(max(0.0, min(_LOOK_SECONDS, deadline - time.monotonic()))):
                        self._admit(*newcomer)
                    self._raise_if_known()
                except (BootstrapError, OSError) as error:
                    reason = self._refuse_all(str(self._explained(error)))
                    refuse_newcomers(lobby, reason, self.size - 1 - len(self._peers), _GRACE)
                    raise BootstrapError(reason) from None
                if time.monotonic() >= deadline and len(self._peers) < self.size - 1:
                    missing = [r for r in range(1, self.size) if r not in self._peers]
                    raise BootstrapError(self._refuse_all(self._missing_text(missing)))

    def _explained(self, error: BootstrapError | OSError) -> BootstrapError | OSError:
        if isinstance(error, BootstrapError) or not are_used_up(error):
            return error
        return refusal(f"rank {self.rank} of {self.size}", "it needs one for each other rank", error)

    def _admit(self, peer: socket.socket, hello: Hello) -> None:
        """Rank 0: admit a newcomer; an invalid rank is an error on all ranks."""
        rank, trouble = hello.rank, hello.ended
        if hello.version != _VERSION:
            trouble = f"a rank uses rendezvous version {hello.version}, rank 0 uses {_VERSION}: mixed installations"
        elif hello.size != self.size:
            trouble = f"rank {rank} was given a size of {hello.size}, rank 0 a size of {self.size}"
        elif not trouble and (not 0 < rank < self.size or rank in self._peers):
            trouble = f"two processes claim rank {rank}{_origin(peer)}"
        with contextlib.suppress(OSError):  # a newcomer that has closed is detected in the first round
            peer.send(frame(_ERROR, trouble.encode()) if trouble else frame(_WELCOME, b""))
        if trouble:
            peer.close()
            raise BootstrapError(trouble)
        self._peers[rank] = peer

    # -- rounds --------------------------------------------------------------------------------------------

    def _serve(self, data: bytes, deadline: float) -> list[bytes]:
        """Rank 0: collect from all ranks, in the order of arrival, then answer all."""
        blobs: dict[int, bytes] = {0: data}
        readers = {rank: Reader(MOST_BYTES) for rank in self._peers}

        def collect(rank: int) -> bool:
            found = readers[rank].read(self._peers[rank])
            if found is None:
                return False
            kind, blobs[rank] = found
            if kind == _ERROR:
                raise BootstrapError(self._refuse_all(blobs[rank].decode(errors="replace")))
            if kind != _DATA:
                raise ValueError(f"a frame of kind {kind}")
            return True

        self._with_all(selectors.EVENT_READ, collect, deadline)
        result = [blobs[r] for r in range(self.size)]
        left = dict.fromkeys(self._peers, memoryview(frame(_DATA, pack(result))))

        def reply(rank: int) -> bool:
            with contextlib.suppress(BlockingIOError):
                left[rank] = left[rank][self._peers[rank].send(left[rank]) :]
            return not left[rank]

        self._with_all(selectors.EVENT_WRITE, reply, deadline)
        return result

    def _with_all(self, event: int, step: Callable[[int], bool], deadline: float) -> None:
        """Rank 0: `step` for each rank whenever its socket is ready, until it is True; no rank waits for another."""
        with selectors.PollSelector() as selector:
            for rank, peer in self._peers.items():
                selector.register(peer, event, rank)
            while missing := [key.data for key in selector.get_map().values()]:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready and time.monotonic() >= deadline:
                    raise BootstrapError(self._refuse_all(self._missing_text(sorted(missing))))
                for key, _ in ready:
                    try:
                        done = step(key.data)
                    except (OSError, EOFError, ValueError):
                        raise BootstrapError(self._refuse_all(self._gone(key.data))) from None
                    if done:
                        selector.unregister(key.fileobj)

    def _ask(self, data: bytes, deadline: float) -> list[bytes]:
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
            raise BootstrapError(self._gone(0)) from None
        if kind == _ERROR:
            raise BootstrapError(payload.decode(errors="replace"))
        if len(result) != self.size:
            raise BootstrapError(f"rank 0 answered with the data of {len(result)} ranks, not of {self.size}")
        return result

    def _refuse_all(self, message: str) -> str:
        for peer in self._peers.values():
            with contextlib.suppress(OSError):  # the receiver has closed, or does not read
                peer.send(frame(_ERROR, message.encode()))
        return message

    def _missing_text(self, missing: Sequence[int]) -> str:
        text = f"{ranks_have(missing, self.size)} not arrived at the rendezvous within the deadline"
        text += "".join(self._silence(rank) for rank in missing[:_SHOWN] if rank in self._peers)
        return text + (f"; {self._hint}" if self._hint else "")

    def _gone(self, rank: int) -> str:
        return f"rank {rank}{self._where(rank)} left the rendezvous: its process ended or closed its communicator"

    def _silence(self, rank: int) -> str:
        """Describe for errors a connected rank that has not answered; empty if nothing is known."""
        return ""

    def _where(self, rank: int) -> str:
        """Place of a connected rank, in parentheses, for errors, if that may be another host."""
        return ""


class Introduction:
    """A newcomer of a lobby that sends a Hello."""

    def __init__(self) -> None:
        self._reader = Reader(_HELLO.size + _MOST_REASON)

    def advance(self, peer: socket.socket) -> Hello | None:
        """The Hello once complete. Raises OSError, EOFError or ValueError if it is none."""
        found = self._reader.read(peer)
        if found is None:
            return None
        kind, payload = found
        if kind not in (_HELLO_KIND, _ENDED) or len(payload) < _HELLO.size:
            raise ValueError("no introduction")
        reason = payload[_HELLO.size :].decode(errors="replace")
        if bool(reason) != (kind == _ENDED):
            raise ValueError("no introduction")
        version, rank, size = _HELLO.unpack_from(payload)
        return Hello(version, rank, size, reason)


def say_that_it_ended(peer: socket.socket, rank: int, size: int, reason: str) -> None:
    """Tell rank 0 over a new connection that a rank will not come. It is no error if that has closed."""
    text = reason.encode()[:_MOST_REASON]
    with contextlib.suppress(OSError):
        peer.send(frame(_ENDED, _HELLO.pack(_VERSION, rank, size) + text))


def refuse_newcomers(lobby: Lobby[Hello], reason: str, most: float, seconds: float) -> None:
    """Send the reason to so many ranks that introduce themselves, at most, for so many seconds."""
    until = time.monotonic() + seconds
    while most > 0 and (left := until - time.monotonic()) > 0:
        for peer, _ in lobby.serve(min(left, _GRACE)):
            with peer, contextlib.suppress(OSError):
                peer.send(frame(_ERROR, reason.encode()))
            most -= 1


def _origin(peer: socket.socket) -> str:
    """Host of a connection, for errors, if it is another one."""
    with contextlib.suppress(OSError):
        address = peer.getpeername()
        if peer.family != socket.AF_UNIX:
            return f": the second is on {address[0]}"
    return ""
