"""TCP connections between the ranks of different hosts, made and authenticated before the link uses them."""

from __future__ import annotations

import contextlib
import functools
import math
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from pycollective.comm.bootstrap.rendezvous import name_ranks
from pycollective.comm.bootstrap.sockets.authentication import (
    ACCEPTED,
    DUPLICATE,
    UNEXPECTED,
    AcceptingEnd,
    Claim,
    digest,
)
from pycollective.comm.bootstrap.sockets.dialling import Dial, Endpoint
from pycollective.comm.bootstrap.sockets.lobby import Lobby
from pycollective.comm.bootstrap.tcp import listen
from pycollective.comm.host.segments import setting
from pycollective.errors import BootstrapError

_LONGEST_TIMEOUT, _MOST_PROBES = 1e6, 127  # of Linux's socket options
_MOST_KEPT = 4096  # connections for communicators that this rank is not building yet
_LOOK_SECONDS = 0.1  # another thread may have accepted a connection meant for this one
_SHOWN = 4  # unreachable peers listed in an error


class Listener:
    """The socket to which ranks of other hosts connect: one per process, for all its communicators.

    Connections are accepted while some thread is in `connect_all`; those for other communicators are kept.

    Args:
        address: a numeric address of this host; nothing is received on its other interfaces.
        token: of the job. host: name of this host, for the errors of all ranks.

    Raises:
        BootstrapError: the address cannot be bound.
    """

    def __init__(self, address: str, token: bytes, host: str) -> None:
        self.token = token
        self._lock = threading.Lock()
        self._kept: dict[socket.socket, AcceptingEnd] = {}  # in the order of arrival
        listener = listen(address)
        self.address: tuple[str, int] = listener.getsockname()[:2]
        self.endpoint = Endpoint(host, *self.address)
        self._lobby: Lobby[AcceptingEnd] = Lobby(listener, functools.partial(AcceptingEnd, token))

    def fileno(self) -> int:
        return self._lobby.fileno()

    def serve(self) -> None:
        """Accept and authenticate what has arrived, without waiting."""
        with self._lock:
            for peer, caller in self._lobby.serve():
                if len(self._kept) >= _MOST_KEPT:
                    oldest = next(iter(self._kept))
                    del self._kept[oldest]
                    oldest.close()
                self._kept[peer] = caller

    def take(self, purpose: bytes) -> list[tuple[socket.socket, AcceptingEnd]]:
        """The connections claimed for a purpose (its `digest`) that have not been taken yet; without a verdict."""
        with self._lock:
            found = [(peer, caller) for peer, caller in self._kept.items() if caller.claim.purpose == purpose]
            for peer, _ in found:
                del self._kept[peer]
        return found

    def __del__(self) -> None:
        """Close it with its last communicator: nothing here refers to it, or it would wait for a collection."""
        if hasattr(self, "_lobby"):
            self.close()

    def close(self) -> None:
        """Close the socket, and the connections that nobody has taken; may be called twice."""
        with self._lock:
            for peer in self._kept:
                peer.close()
            self._kept.clear()
            self._lobby.close()


def connect_all(
    listener: Listener,
    endpoints: Sequence[Endpoint],
    rank: int,
    peers: Collection[int],
    purpose: bytes,
    lanes: int,
    deadline: float,
    watched: Collection[int] = (),
    check: Callable[[], None] = lambda: None,
) -> dict[int, list[socket.socket]]:
    """Collective: connections between this rank and every rank of `peers`; of two ranks the higher one dials.

    Args:
        listener: of this process. endpoints: every rank's `listener.endpoint`, from an allgather.
        rank: of this process. peers: the ranks to be connected with; each lists this one.
        purpose: a name of what the connections are for, the same on all ranks, used once.
        lanes: number of connections per peer. deadline: on the clock of time.monotonic().
        watched: lanes that both ends always read: there a host that does not answer is noticed within the time set
            by PYCOLLECTIVE_HOST_TIMEOUT. On the others that would end connections to peers that are only busy: for the
            kernel, a receiver whose buffer stays full has not answered.
        check: called several times a second; raises if a peer will never connect.

    Returns:
        each peer's connections by lane, nonblocking, without delay of small messages, with keepalive.

    Raises:
        BootstrapError: peers not connected at the deadline, or refusing connections: each with host, address and
            reason; two processes that claim one rank. What `check` raises.
    """
    wanted = {(peer, lane) for peer in peers for lane in range(lanes)}
    meeting = Meeting(listener, endpoints, rank, wanted, purpose)
    try:
        meeting.run(deadline, check)
    except BaseException:
        meeting.close()
        raise
    meeting.finish()
    for (_, lane), connection in meeting.connected.items():
        _tune(connection, lane in watched)
    return {peer: [meeting.connected[peer, lane] for lane in range(lanes)] for peer in peers}


class Meeting:
    """Connections of this rank for one purpose: `connected`, by peer and lane, as far as they have been made.

    Args:
        listener, endpoints, rank, purpose: as for connect_all.
        wanted: pairs of a peer and a lane.
    """

    def __init__(
        self,
        listener: Listener,
        endpoints: Sequence[Endpoint],
        rank: int,
        wanted: set[tuple[int, int]],
        purpose: bytes,
    ) -> None:
        self._listener, self._endpoints, self._rank, self._wanted = listener, endpoints, rank, wanted
        self._purpose = digest(listener.token, purpose)
        self._dials = [self._dial(peer, lane) for peer, lane in sorted(wanted) if peer < rank]
        self._selector = selectors.PollSelector()  # needs no descriptor
        self._selector.register(listener, selectors.EVENT_READ, None)
        self.connected: dict[tuple[int, int], socket.socket] = {}

    def run(self, deadline: float, check: Callable[[], None]) -> None:
        """Accept and dial until all are connected; `check` as for connect_all."""
        while True:
            self.advance(deadline)
            if len(self.connected) == len(self._wanted):
                return
            check()
            now = time.monotonic()
            if now >= deadline or any(dial.hopeless(now) for dial in self._dials):
                raise BootstrapError(self._report())

    def advance(self, until: float) -> None:
        """Accept and dial once; wait for that until `until`, or a little, unless all are connected.

        Raises:
            OSError: no descriptor is left.
        """
        self._admit()
        now = time.monotonic()
        for dial in self._dials:
            dial.start_if_due(now, self._selector)
        if len(self.connected) == len(self._wanted):
            return
        pause = min([until - now, _LOOK_SECONDS, *(dial.next_try - now for dial in self._dials)])
        for key, _ in self._selector.select(max(0.0, pause)):
            if key.data is None:
                self._listener.serve()
            elif (connection := key.data.advance(self._selector)) is not None:
                self._dials.remove(key.data)
                self.connected[key.data.claim.peer, key.data.claim.lane] = connection

    def drop(self, peer: int, lane: int) -> None:
        """Close a connection, which may then be made again."""
        self.connected.pop((peer, lane)).close()
        if peer < self._rank:
            self._dials.append(self._dial(peer, lane))

    def finish(self) -> None:
        """Make no more connections; those made remain."""
        for dial in self._dials:
            dial.close()
        self._selector.close()

    def close(self) -> None:
        self.finish()
        for connection in self.connected.values():
            connection.close()

    def _dial(self, peer: int, lane: int) -> Dial:
        claim = Claim(self._rank, peer, lane, self._purpose)
        return Dial(self._endpoints[peer], self._listener.token, claim)

    def _admit(self) -> None:
        """Give each connection that was accepted for this purpose its verdict."""
        for peer, caller in self._listener.take(self._purpose):
            if has_ended(peer):
                peer.close()
                continue
            rank, place = caller.claim.rank, (caller.claim.rank, caller.claim.lane)
            if caller.claim.peer != self._rank or place not in self._wanted or rank < self._rank:
                self._judge(peer, caller, UNEXPECTED)
                peer.close()
                continue
            before = self.connected.get(place)
            if before is not None and not has_ended(before):
                self._judge(peer, caller, DUPLICATE)
                peer.close()
                raise BootstrapError(f"two processes claim rank {rank}: the second is on {_origin(peer)}")
            if before is not None:
                before.close()
                del self.connected[place]
            if self._judge(peer, caller, ACCEPTED):
                self.connected[place] = peer
            else:
                peer.close()

    def _judge(self, peer: socket.socket, caller: AcceptingEnd, verdict: int) -> bool:
        with contextlib.suppress(OSError):  # it has closed; if its process lives, it dials again
            caller.send_verdict(peer, verdict)
            return True
        return False

    def _report(self) -> str:
        problems = [*self._undialled(), *self._unheard()]
        more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        return "; ".join([*problems[:_SHOWN], *more])

    def _undialled(self) -> Iterator[str]:
        here = f"rank {self._rank} on host {self._endpoints[self._rank].host}"
        for peer in sorted({dial.claim.peer for dial in self._dials}):
            reason = next(dial.reason for dial in self._dials if dial.claim.peer == peer)
            there = self._endpoints[peer]
            yield f"{here} cannot reach rank {peer} on host {there.host} at {there}: {reason}"

    def _unheard(self) -> Iterator[str]:
        silent: dict[str, list[int]] = {}
        for peer in sorted({peer for peer, _ in self._wanted - self.connected.keys() if peer > self._rank}):
            silent.setdefault(self._endpoints[peer].host, []).append(peer)
        own = self._endpoints[self._rank]
        for host, ranks in silent.items():
            yield f"rank {self._rank} on host {own.host} was not reached at {own} by {name_ranks(ranks)} on host {host}"


def _tune(connection: socket.socket, watched: bool) -> None:
    """Options of a finished connection; see `connect_all`."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = min(setting("PYCOLLECTIVE_HOST_TIMEOUT"), _LONGEST_TIMEOUT)
    probes = min(max(2, math.ceil(seconds)), _MOST_PROBES)
    for option, number in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, probes)):
        connection.setsockopt(socket.IPPROTO_TCP, option, number)
    if watched:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(seconds * 1000)))


def has_ended(connection: socket.socket) -> bool:
    """Return whether the peer has closed a nonblocking connection, and all that it had sent has been read."""
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _origin(peer: socket.socket) -> str:
    with contextlib.suppress(OSError):
        return str(peer.getpeername()[0])
    return "a host that has gone"
