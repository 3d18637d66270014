"""Announcements of messages from senders to receivers; on one host in a small table in shared memory.

A channel between two ranks delivers messages in send order, to a receiver that knows their size. torch's messages have
tags, may be received in another order and from any sender, so each is announced before it is sent. An entry of the
table is two words, each of which contains the message's number along with its data, so that a reader can see from each
word whether it is new, whatever the order in which the words become visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pycollective.comm.host.segments import Exchange, share_segment

SLOTS = 128
"""Maximum number of announced messages from one rank to another that have not been taken."""
_NUMBER_BITS, _SIZE_BITS = 16, 48
_MASK = (1 << _NUMBER_BITS) - 1
_TAKEN = 2 * SLOTS
_ROW = _TAKEN + 1
"""Words from one rank to another: the entries, and how many messages the receiver has taken."""


class Announcements(Protocol):
    """Announcements of messages of a process group, for one thread at a time."""

    def room(self, dest: int) -> bool:
        """Return whether another message to `dest` can be announced."""
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

    def await_room(self, dest: int, seconds: float) -> None:
        """Return when there may be room for another message to `dest`, or after a while."""
        ...

    def await_next(self, sources: Sequence[int], seconds: float) -> None:
        """Return when one of `sources` may have announced another message, or after a while."""
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
        memory = share_segment(exchange, rank, range(size), 8 * size * size * _ROW)
        assert memory is not None  # every rank is a member
        self._memory = memory
        # Its elements are read much faster than an array's.
        self._words = memoryview(memory).cast("B").cast("Q")  # type: ignore[arg-type]
        self._outgoing = [(rank * size + receiver) * _ROW for receiver in range(size)]  # where rows start
        self._incoming = [(sender * size + rank) * _ROW for sender in range(size)]
        self._sent = [0] * size
        self._taken = [0] * size

    def room(self, dest: int) -> bool:
        return self._sent[dest] - self._words[self._outgoing[dest] + _TAKEN] < SLOTS

    def announce(self, dest: int, tag: int, nbytes: int) -> None:
        number = self._sent[dest]
        self._sent[dest] += 1
        slot = self._outgoing[dest] + 2 * (number % SLOTS)
        mark = (number // SLOTS + 1) & _MASK
        self._words[slot] = mark << _SIZE_BITS | nbytes
        self._words[slot + 1] = mark << _SIZE_BITS | (tag & 0xFFFFFFFF)

    def next(self, source: int) -> tuple[int, int] | None:
        number = self._taken[source]
        slot = self._incoming[source] + 2 * (number % SLOTS)
        mark = (number // SLOTS + 1) & _MASK
        size, tag = self._words[slot], self._words[slot + 1]
        if size >> _SIZE_BITS != mark or tag >> _SIZE_BITS != mark:
            return None
        tag &= 0xFFFFFFFF
        return tag - (1 << 32) if tag >> 31 else tag, size & ((1 << _SIZE_BITS) - 1)

    def take(self, source: int) -> None:
        self._taken[source] += 1
        self._words[self._incoming[source] + _TAKEN] = self._taken[source]

    def await_room(self, dest: int, seconds: float) -> None:
        word = self._outgoing[dest] + _TAKEN
        taken = self._words[word]
        if self._sent[dest] - taken >= SLOTS:
            self._memory.await_change([(word, taken)], seconds)

    def await_next(self, sources: Sequence[int], seconds: float) -> None:
        words = []
        for source in sources:
            word = self._incoming[source] + 2 * (self._taken[source] % SLOTS) + 1  # an entry's last
            words.append((word, self._words[word]))
            if self.next(source) is not None:
                return
        self._memory.await_change(words, seconds)

    def close(self) -> None:
        """There is nothing to close."""
