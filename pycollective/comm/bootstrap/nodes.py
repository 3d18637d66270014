"""Which ranks share a node: ranks of one host, one boot and one PID namespace can map each other's memory."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pycollective import settings
from pycollective.comm.bootstrap.protocol import Bootstrap


@dataclass(frozen=True, slots=True)
class Nodes:
    """The node of every rank, from the view of `rank`. Nodes are numbered in the order of their lowest rank."""

    rank: int
    of: tuple[int, ...]
    """Node index of every rank."""

    @property
    def count(self) -> int:
        return max(self.of) + 1

    @property
    def node(self) -> int:
        return self.of[self.rank]

    def ranks(self, node: int | None = None) -> tuple[int, ...]:
        """The ranks on `node` (this rank's node by default), ascending."""
        wanted = self.node if node is None else node
        return tuple(r for r, n in enumerate(self.of) if n == wanted)

    def hosts_of(self, members: Sequence[int]) -> tuple[int, ...]:
        """The nodes of some ranks, in their order, numbered by first appearance; empty if it is one node."""
        nodes = place([self.of[rank] for rank in members], 0)
        return nodes.of if nodes.count > 1 else ()

    @property
    def local_rank(self) -> int:
        """Position among the ranks of this node."""
        return self.ranks().index(self.rank)

    @property
    def local_size(self) -> int:
        return len(self.ranks())

    def cross_ranks(self) -> tuple[int, ...]:
        """One rank of each node: those with this rank's `local_rank` (a smaller node may lack one)."""
        mine = self.local_rank
        columns = (self.ranks(node) for node in range(self.count))
        return tuple(column[mine] for column in columns if len(column) > mine)

    @property
    def cross_rank(self) -> int:
        """Position among `cross_ranks()`, as in Horovod."""
        return self.cross_ranks().index(self.rank)

    @property
    def cross_size(self) -> int:
        return len(self.cross_ranks())


def node_key() -> bytes:
    """A key that is equal for processes that can share memory: host name, boot id and PID namespace.

    PYCOLLECTIVE_HOST is part of it too, which divides one host into several, to try what happens between hosts.
    """
    parts = [
        settings.read("PYCOLLECTIVE_HOST"),
        socket.gethostname(),
        _read("/proc/sys/kernel/random/boot_id"),
        _link("/proc/self/ns/pid"),
    ]
    return "\0".join(parts).encode()


def machine_key() -> str:
    """A key that is equal for processes on one kernel, which share its cores."""
    return _read("/proc/sys/kernel/random/boot_id") or socket.gethostname()


def place(keys: Sequence[object], rank: int) -> Nodes:
    index = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return Nodes(rank, tuple(index[key] for key in keys))


_END = b"\xff"  # which text does not contain


def discover(bootstrap: Bootstrap, more: bytes = b"") -> tuple[Nodes, bytes]:
    """Collective, one allgather: the node of every rank, and what rank 0 has to tell all others, its `more`."""
    sent = node_key() + _END + (more if bootstrap.rank == 0 else b"")
    received = [each.partition(_END) for each in bootstrap.allgather(sent)]
    return place([key for key, _, _ in received], bootstrap.rank), received[0][2]


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
