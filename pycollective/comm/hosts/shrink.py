"""shrink() between hosts: how the survivors find each other over new connections and agree on the members.

Every survivor connects with every other that it can reach. The lowest rank that a survivor reaches is to lead: once no
lower rank can call any more, or the time is over, the survivor asks it to be a member. The leader waits for those who
may still ask, for a bounded time, then tells all the members. They must be more than half of the ranks, or half with
rank 0: of several groups that cannot reach each other, at most one continues.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pycollective import _core
from pycollective.comm.bootstrap.dialling import Endpoint
from pycollective.comm.bootstrap.frames import Reader, frame, pack, receive, unpack
from pycollective.comm.bootstrap.rendezvous import name_ranks
from pycollective.comm.hosts.connections import Listener, Meeting
from pycollective.errors import BootstrapError, CommunicatorError

_JOIN, _JOIN_LATE, _LEADS, _MEMBERS, _REFUSED, _BLOB = range(1, 7)
"""Messages: asks to be a member; the same, and its time is over; leads; the result; why there is none; see `Meeting`."""
_POLL_SECONDS = 0.005
_GRACE_SECONDS = 2.0  # for survivors that are connected, after the time is over
_LEAST_SECONDS = 10.0  # for making the new communicator, in which only a further loss takes long
_MOST_BYTES = 1 << 28  # of a message
_PURPOSE = b" shrink"


@dataclass
class Survivor:
    """Another rank that has called shrink()."""

    connection: socket.socket
    reader: Reader = field(default_factory=lambda: Reader(_MOST_BYTES))
    asks: bool = False
    """To be a member of what this rank leads."""
    leads: bool = False
    told: bool = False
    """That this rank leads."""

    def send(self, kind: int, payload: bytes = b"", seconds: float = _GRACE_SECONDS) -> None:
        """Raises OSError if the connection has ended, or the receiver does not read."""
        self.connection.settimeout(seconds)
        try:
            self.connection.sendall(frame(kind, payload))
        finally:
            self.connection.setblocking(False)


@dataclass
class Agreement:
    """The members, and their exchange through the leader."""

    rank: int
    leader: int
    members: list[int]
    others: dict[int, Survivor]
    """On the leader all other members, else the leader."""
    deadline: float

    def exchange(self, data: bytes) -> list[bytes]:
        """Allgather among the members.

        Raises:
            CommunicatorError: a member, or the leader, is gone.
        """
        if self.rank != self.leader:
            self._to(self.leader, data)
            return unpack(self._from(self.leader))
        blobs = [data if rank == self.rank else self._from(rank) for rank in self.members]
        joined = pack(blobs)
        for rank in self.others:
            self._to(rank, joined)
        return blobs

    def _to(self, rank: int, payload: bytes) -> None:
        try:
            self.others[rank].send(_BLOB, payload, max(_POLL_SECONDS, self.deadline - time.monotonic()))
        except OSError:
            raise self._gone(rank) from None

    def _from(self, rank: int) -> bytes:
        peer = self.others[rank]
        try:
            return receive(peer.connection, peer.reader, self.deadline)[1]
        except (OSError, EOFError, ValueError):
            raise self._gone(rank) from None

    def _gone(self, rank: int) -> CommunicatorError:
        role = "led" if rank == self.leader else "took part in"
        return CommunicatorError(f"rank {rank}, which {role} shrink(), is gone, or has failed to complete it")


@contextlib.contextmanager
def agree(
    team: _core.Team, rank: int, listener: Listener, endpoints: Sequence[Endpoint], name: bytes, timeout: float
) -> Iterator[Agreement]:
    """Collective over the survivors: which ranks continue. The connections close at the end of the with statement.

    Args:
        team, rank: this rank's part of the communicator, and its number there.
        listener: of this process. endpoints: of all ranks. name: of the communicator.
        timeout: seconds within which all survivors call.

    Raises:
        CommunicatorError: this rank was left out; its group may not continue; the leader does not answer.
    """
    wanted = {(peer, 0) for peer in range(len(endpoints)) if peer != rank}
    meeting = Meeting(listener, endpoints, rank, wanted, name + _PURPOSE)
    try:
        yield _Round(team, rank, meeting, timeout).run()
    finally:
        meeting.close()


class _Round:
    """One rank's call of shrink() until the members are known."""

    def __init__(self, team: _core.Team, rank: int, meeting: Meeting, timeout: float) -> None:
        self._team, self._rank, self._meeting, self._timeout = team, rank, meeting, timeout
        self._deadline = time.monotonic() + timeout
        self._end = self._deadline + timeout + _GRACE_SECONDS
        self._others: dict[int, Survivor] = {}
        self._asked = -1  # the rank that is to lead
        self._leads = False

    def run(self) -> Agreement:
        while True:
            if self._team.expelled:
                raise _too_late(self._rank)
            self._meet()
            agreement = self._hear() or self._act()
            if agreement is not None:
                return agreement
            if time.monotonic() > self._end:
                raise CommunicatorError(
                    f"rank {self._asked} should have led shrink() but did not within {self._timeout:g} s"
                )

    @property
    def _late(self) -> bool:
        return time.monotonic() >= self._deadline

    def _lost(self, rank: int) -> bool:
        """Whether it can no longer call; one that is connected has."""
        return rank not in self._others and (self._team.gone(rank) or self._team.departed(rank))

    def _meet(self) -> None:
        started = time.monotonic()
        try:
            self._meeting.advance(started + _POLL_SECONDS)
        except BootstrapError as error:
            raise CommunicatorError(f"shrink() has failed: {error}") from None
        if len(self._meeting.connected) == self._team.size - 1:  # it has not waited
            time.sleep(_POLL_SECONDS)
        for (rank, _), connection in self._meeting.connected.items():
            known = self._others.get(rank)
            if known is None or known.connection is not connection:
                self._others[rank] = Survivor(connection)

    def _drop(self, rank: int) -> None:
        del self._others[rank]
        self._meeting.drop(rank, 0)
        if self._asked == rank:
            self._asked = -1

    def _try(self, rank: int, action: Callable[[Survivor], None]) -> None:
        """Something that may show that the other rank is gone."""
        try:
            action(self._others[rank])
        except (OSError, EOFError, ValueError):
            self._drop(rank)

    def _hear(self) -> Agreement | None:
        found: list[Agreement] = []

        def read(peer: Survivor) -> None:
            while not found and (message := peer.reader.read(peer.connection)) is not None:
                agreement = self._take(rank, peer, *message)
                if agreement is not None:
                    found.append(agreement)

        for rank in sorted(self._others):
            self._try(rank, read)
        return found[0] if found else None

    def _take(self, rank: int, peer: Survivor, kind: int, payload: bytes) -> Agreement | None:
        if kind in (_JOIN, _JOIN_LATE):
            peer.asks = True
            if kind == _JOIN_LATE:  # all who called in time are here
                self._deadline = min(self._deadline, time.monotonic())
        elif kind == _LEADS:
            peer.leads = True
        elif kind == _REFUSED and rank == self._asked:
            raise CommunicatorError(payload.decode())
        elif kind == _MEMBERS:
            members = [int(number) for number in payload.split(b",")]
            if self._rank not in members:
                raise _too_late(self._rank)
            return self._agreement(rank, members, {rank: peer})
        return None

    def _act(self) -> Agreement | None:
        first = min(self._others, default=self._rank)
        if first >= self._rank or self._leads:
            if self._leads or self._late or all(map(self._lost, range(self._rank))):
                return self._lead()
        elif self._asked < 0:
            if self._others[first].leads or self._late or all(map(self._lost, range(first))):
                kind = _JOIN_LATE if self._late else _JOIN
                self._asked = first
                self._try(first, lambda peer: peer.send(kind))
        return None

    def _lead(self) -> Agreement | None:
        self._leads = True

        def tell(peer: Survivor) -> None:
            if not peer.told:
                peer.told = True
                peer.send(_LEADS)

        for rank in list(self._others):
            self._try(rank, tell)
        undecided = {rank for rank, peer in self._others.items() if not peer.asks}
        absent = {rank for rank in range(self._team.size) if rank not in self._others and rank != self._rank}
        grace = min(self._timeout, _GRACE_SECONDS)
        complete = not undecided and all(map(self._lost, absent))
        over = self._late and (not undecided or time.monotonic() > self._deadline + grace)
        return self._decide() if complete or over else None

    def _decide(self) -> Agreement:
        members = sorted([self._rank, *(rank for rank, peer in self._others.items() if peer.asks)])
        refusal = why_not(members, self._team.size)
        kind, text = (_REFUSED, refusal.encode()) if refusal else (_MEMBERS, ",".join(map(str, members)).encode())
        for rank in list(self._others):
            self._try(rank, lambda peer: peer.send(kind, text))
        if refusal:
            raise CommunicatorError(refusal)
        return self._agreement(self._rank, members, {r: p for r, p in self._others.items() if r in members})

    def _agreement(self, leader: int, members: list[int], others: dict[int, Survivor]) -> Agreement:
        return Agreement(self._rank, leader, members, others, time.monotonic() + max(self._timeout, _LEAST_SECONDS))


def why_not(members: Sequence[int], size: int) -> str:
    """Why these of `size` ranks may not continue; empty if they may."""
    if 2 * len(members) > size or (2 * len(members) == size and 0 in members):
        return ""
    return (
        f"shrink() needs more than half of the {size} ranks, or half with rank 0, so that no two groups continue: only "
        f"{name_ranks(members)} {'has' if len(members) == 1 else 'have'} called it and can be reached"
    )


def _too_late(rank: int) -> CommunicatorError:
    return CommunicatorError(f"shrink() completed without rank {rank}, which called it too late")
