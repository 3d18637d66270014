"""The other ranks that have called shrink() between hosts, and the members' exchange through the one that leads."""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass, field

from pycollective.comm.bootstrap.sockets.frames import Reader, frame, pack, receive, unpack
from pycollective.errors import CommunicatorError

JOIN, JOIN_LATE, LEADS, MEMBERS, REFUSED, BLOB = range(1, 7)
"""Messages: the sender asks to be a member; the same, its time being over; leads; the members; why there is no
communicator; a part of an exchange."""
GRACE_SECONDS = 2.0
"""For survivors that are connected, after the time is over."""
_MOST_BYTES = 1 << 28  # of a message
_LEAST_SECONDS = 0.005  # to send


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
            self.others[rank].send(BLOB, payload, max(_LEAST_SECONDS, self.deadline - time.monotonic()))
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
