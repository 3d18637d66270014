"""Announcements of messages from senders to receivers; on one host in a small table in shared memory.

A channel between two ranks delivers messages in send order, to a receiver that knows their size. torch's messages have
tags, may be received in another order and from any sender, so each is announced before it is sent. An entry of the
table is two words, each of which contains the message's number along with its data, so that a reader can see from each
word whether it is new, whatever the order in which the words become visible.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pycollective.comm.host.segments import Exchange, share_segment

SLOTS = 128
"""Maximum number of announced messages from one rank to another that have not been taken."""
_NUMBER_BITS, _SIZE_BITS = 16, 48
_MASK = (1 << _NUMBER_BITS) - 1


class Announcements(Protocol):
    """Of a process group; for one thread at a time."""

    def room(self, dest: int) -> bool:
        """Whether another message to `dest` can be announced."""
        ...

    def announce(self, dest: int, tag: int, nbytes: int) -> None:
        """Announce the next message on the channel to `dest`; there must be room. Tags: 32 bits, signed."""
        ...

    def next(self, source: int) -> tuple[int, int] | None:
        """(tag, bytes) of the next message from `source`, if it is announced; it stays the next until `take`."""
        ...

    def take(self, source: int) -> None:
        """Advance to the message after `next`."""
        ...

    def close(self) -> None:
        """No further calls are made."""
        ...


class Mailbox:
    """Announcements in shared memory.

    Args: exchange, rank, size: of the process group, whose ranks are all on this host.

    Collective; raises CommunicatorError if memory cannot be shared.
    """

    def __init__(self, exchange: Exchange, rank: int, size: int) -> None:
        nbytes = 8 * size * size * (2 * SLOTS + 1)
        memory = share_segment(exchange, rank, range(size), nbytes)
        words = np.frombuffer(memory, np.uint64).reshape(size, size, 2 * SLOTS + 1)  # type: ignore[call-overload]
        self._outgoing = words[rank]  # [receiver]
        self._incoming = words[:, rank]  # [sender]
        self._sent = [0] * size
        self._taken = [0] * size

    def room(self, dest: int) -> bool:
        """See Announcements."""
        return self._sent[dest] - int(self._outgoing[dest, -1]) < SLOTS

    def announce(self, dest: int, tag: int, nbytes: int) -> None:
        """See Announcements."""
        number = self._sent[dest]
        self._sent[dest] += 1
        slot = 2 * (number % SLOTS)
        mark = (number // SLOTS + 1) & _MASK
        self._outgoing[dest, slot] = mark << _SIZE_BITS | nbytes
        self._outgoing[dest, slot + 1] = mark << _SIZE_BITS | (tag & 0xFFFFFFFF)

    def next(self, source: int) -> tuple[int, int] | None:
        """See Announcements."""
        number = self._taken[source]
        slot = 2 * (number % SLOTS)
        mark = (number // SLOTS + 1) & _MASK
        size, tag = int(self._incoming[source, slot]), int(self._incoming[source, slot + 1])
        if size >> _SIZE_BITS != mark or tag >> _SIZE_BITS != mark:
            return None
        tag &= 0xFFFFFFFF
        return tag - (1 << 32) if tag >> 31 else tag, size & ((1 << _SIZE_BITS) - 1)

    def take(self, source: int) -> None:
        """See Announcements."""
        self._taken[source] += 1
        self._incoming[source, -1] = self._taken[source]

    def close(self) -> None:
        """See Announcements."""
