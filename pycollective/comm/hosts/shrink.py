"""shrink() between hosts: how the survivors find each other over new connections and agree on the members.

Every survivor connects with every other that it can reach. The lowest rank that a survivor reaches is to lead: once no
lower rank can call any more, or the time is over, the survivor asks it to be a member. The leader waits for those who
may still ask, for a bounded time, then tells all the members. They must be more than half of the ranks, or half with
rank 0: of several groups that cannot reach each other, at most one continues. If a member is lost before they have
connected, the others begin another round.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pycollective import _core
from pycollective.comm.bootstrap.rendezvous import ranks_have
from pycollective.comm.bootstrap.sockets.dialling import Endpoint
from pycollective.comm.bootstrap.sockets.frames import Reader, frame, pack, receive, unpack
from pycollective.comm.hosts.connections import Listener, Meeting
from pycollective.errors import BootstrapError, CommunicatorError

JOIN, JOIN_LATE, LEADS, MEMBERS, REFUSED, BLOB = range(1, 7)
"""Messages: the sender asks to be a member; the same, its time being over; leads; the members; why there is no
communicator; a part of an exchange."""
GRACE_SECONDS = 2.0
"""For survivors that are connected, after the time is over."""
_MOST_BYTES = 1 << 28  # of a message
_LEAST_SEND_SECONDS = 0.005  # to send
_POLL_SECONDS = 0.005
_LEAST_SECONDS = 10.0  # for making the new communicator, in which only a further loss takes long
_PURPOSE = b" shrink"


class MemberLostError(CommunicatorError):
    """A member was lost before the communicator was made: the others meet again."""


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

    def send(self, kind: int, payload: bytes = b"", seconds: float = GRACE_SECONDS) -> None:
        """Raises OSError if the connection has ended, or the receiver does not read."""
        self.connection.settimeout(seconds)
        try:
            self.connection.sendall(frame(kind, payload))
        finally:
            self.connection.setblocking(False)


@dataclass
class SurvivorAgreement:
    """The members, and their exchange through the leader."""

    rank: int
    leader: int
    members: list[int]
    others: dict[int, Survivor]
    """On the leader all other members that it still reaches, else the leader."""
    deadline: float

    def exchange(self, data: bytes) -> list[bytes]:
        """Allgather among the members.

        Raises:
            MemberLostError: a member has gone, or has learned that another one has.
            CommunicatorError: a member has given up.
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
            self.others[rank].send(BLOB, payload, max(_LEAST_SEND_SECONDS, self.deadline - time.monotonic()))
        except (KeyError, OSError):
            raise self.gone(rank) from None

    def _from(self, rank: int) -> bytes:
        try:
            peer = self.others[rank]
            kind, payload = receive(peer.connection, peer.reader, self.deadline)
        except (KeyError, OSError, EOFError, ValueError):
            raise self.gone(rank) from None
        if kind == REFUSED:
            raise CommunicatorError(payload.decode())
        return payload

    def gone(self, rank: int) -> MemberLostError:
        return MemberLostError(f"rank {rank} took part in shrink(), and has gone before it was complete")

    def give_up(self, text: str) -> None:
        """Tell the members, or the leader, which tells them, why this rank makes no communicator."""
        for peer in self.others.values():
            with contextlib.suppress(OSError):
                peer.send(REFUSED, text.encode())


@contextlib.contextmanager
def agree(
    team: _core.Team, rank: int, listener: Listener, endpoints: Sequence[Endpoint], name: bytes, timeout: float
) -> Iterator[SurvivorAgreement]:
    """Collective over the survivors: which ranks continue. The connections close at the end of the with statement.

    Args:
        endpoints: of all ranks. name: of the communicator.
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
        self._end = self._deadline + timeout + GRACE_SECONDS
        self._others: dict[int, Survivor] = {}
        self._asked = -1  # the rank that is to lead
        self._leads = False

    def run(self) -> SurvivorAgreement:
        while True:
            if self._team.expelled:
                raise _too_late(self._rank)
            self._meet()
            if agreement := self._hear() or self._act():
                return agreement
            if time.monotonic() > self._end:
                raise CommunicatorError(
                    f"rank {self._asked} should have led shrink() but did not within {self._timeout:g} s"
                )

    @property
    def _late(self) -> bool:
        return time.monotonic() >= self._deadline

    def _lost(self, rank: int) -> bool:
        """Return whether it can no longer call; one that is connected has."""
        return rank not in self._others and (self._team.gone(rank) or self._team.departed(rank))

    def _meet(self) -> None:
        started = time.monotonic()
        try:
            self._meeting.advance(started + _POLL_SECONDS)
        except (BootstrapError, OSError) as error:
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

    def _hear(self) -> SurvivorAgreement | None:
        found: list[SurvivorAgreement] = []

        def read(peer: Survivor) -> None:
            while not found and (message := peer.reader.read(peer.connection)) is not None:
                if agreement := self._take(rank, peer, *message):
                    found.append(agreement)

        for rank in sorted(self._others):
            self._try(rank, read)
        return found[0] if found else None

    def _take(self, rank: int, peer: Survivor, kind: int, payload: bytes) -> SurvivorAgreement | None:
        if kind in (JOIN, JOIN_LATE):
            peer.asks = True
            if kind == JOIN_LATE:  # all who called in time are here
                self._deadline = min(self._deadline, time.monotonic())
        elif kind == LEADS:
            peer.leads = True
        elif kind == REFUSED and rank == self._asked:
            raise CommunicatorError(payload.decode())
        elif kind == MEMBERS:
            members = [int(number) for number in payload.split(b",")]
            if self._rank not in members:
                raise _too_late(self._rank)
            return self._agreement(rank, members, {rank: peer})
        return None

    def _act(self) -> SurvivorAgreement | None:
        first = min([self._rank, *self._others])
        nobody_before = self._late or all(map(self._lost, range(first)))
        if self._leads or (first == self._rank and nobody_before):
            return self._lead()
        if first < self._rank and self._asked < 0 and (nobody_before or self._others[first].leads):
            kind = JOIN_LATE if self._late else JOIN
            self._asked = first
            self._try(first, lambda peer: peer.send(kind))
        return None

    def _lead(self) -> SurvivorAgreement | None:
        self._leads = True

        def tell(peer: Survivor) -> None:
            if not peer.told:
                peer.told = True
                peer.send(LEADS)

        for rank in list(self._others):
            self._try(rank, tell)
        undecided = {rank for rank, peer in self._others.items() if not peer.asks}
        absent = {rank for rank in range(self._team.size) if rank not in self._others and rank != self._rank}
        grace = min(self._timeout, GRACE_SECONDS)
        complete = not undecided and all(map(self._lost, absent))
        over = self._late and (not undecided or time.monotonic() > self._deadline + grace)
        return self._decide() if complete or over else None

    def _decide(self) -> SurvivorAgreement:
        members = sorted([self._rank, *(rank for rank, peer in self._others.items() if peer.asks)])
        refusal = why_not(members, self._team.size)
        kind, text = (REFUSED, refusal.encode()) if refusal else (MEMBERS, ",".join(map(str, members)).encode())
        for rank in list(self._others):
            self._try(rank, lambda peer: peer.send(kind, text))
        if refusal:
            raise CommunicatorError(refusal)
        return self._agreement(self._rank, members, {r: p for r, p in self._others.items() if r in members})

    def _agreement(self, leader: int, members: list[int], others: dict[int, Survivor]) -> SurvivorAgreement:
        return SurvivorAgreement(
            self._rank, leader, members, others, time.monotonic() + max(self._timeout, _LEAST_SECONDS)
        )


def why_not(members: Sequence[int], size: int) -> str:
    """Why these of `size` ranks may not continue; empty if they may."""
    if 2 * len(members) > size or (2 * len(members) == size and 0 in members):
        return ""
    return (
        f"shrink() needs more than half of the {size} ranks, or half with rank 0, so that no two groups continue: only "
        f"{ranks_have(members)} called it and can be reached"
    )


def _too_late(rank: int) -> CommunicatorError:
    return CommunicatorError(f"shrink() completed without rank {rank}, which called it too late")
