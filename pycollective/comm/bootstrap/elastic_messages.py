"""What the workers of an elastic job and its driver send each other: frames, over one connection per worker."""

from __future__ import annotations

import msgspec

from pycollective.comm.control import Codec

PURPOSE = b"elastic driver"
"""For which a worker's connection to the driver is authenticated; the claim's rank is the worker's number."""
MOST_BYTES = 1 << 20
"""Maximum bytes of a worker's message."""

TASK, RESULT = 21, 22
"""Kinds in both directions. TASK: a worker asks for its task; the driver sends it. RESULT: a part of what the task has
returned, an empty one at the end; the driver confirms that it has all."""
ASK, ROUND = 1, 2
"""Kinds of a worker's frames: an Ask; its data for an allgather of the generation."""
FORMED, GATHERED, BROKEN, UPDATED, LEAVE, REFUSED = 11, 12, 13, 14, 15, 16
"""Kinds of the driver's: a Generation; the data of all ranks; a sentence why the generation has ended; an Update; the
worker is not needed any more; a sentence why the job ends."""


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """A worker asks for a rank in the next generation.

    Attributes:
        synced: whether it has the state of the training.
        needs_sync: whether its state has been restored, so that it must be synchronized again.
        lost: a rank of its last generation that it has lost; -1: none.
    """

    synced: bool = False
    needs_sync: bool = True
    lost: int = -1


class Generation(msgspec.Struct, frozen=True, array_like=True):
    """The ranks between two changes of the job, as one of them is told.

    Attributes:
        number: from 1 on.
        sync: whether all ranks have to synchronize their states.
    """

    number: int
    rank: int
    size: int
    local_rank: int
    local_size: int
    sync: bool


class Update(msgspec.Struct, frozen=True, array_like=True):
    """Hosts were removed (1) or added (2), or both (3), at a time in seconds; later updates have later times."""

    time: float
    result: int


ASKS: Codec[Ask] = Codec(Ask)
GENERATIONS: Codec[Generation] = Codec(Generation)
UPDATES: Codec[Update] = Codec(Update)
