"""What a process needs to connect with ranks of other hosts, for all communicators that it is in."""

from __future__ import annotations

from dataclasses import dataclass

from pycollective.comm.hosts.connections import Listener


@dataclass(frozen=True)
class Network:
    """Of one process.

    Attributes:
        listener: to which higher ranks connect.
        timeout: seconds within which the ranks of a new communicator must be connected.
    """

    listener: Listener
    timeout: float
