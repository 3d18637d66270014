"""The ranks of a communicator, from one rank's view."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pycollective.comm.bootstrap.nodes import Nodes, place


@dataclass(frozen=True, slots=True)
class Group:
    """An ordered set of ranks, with their hosts and names."""

    nodes: Nodes  # the host of every rank
    world_ranks: tuple[int, ...]  # the ranks' numbers in the world, for error messages
    name: str  # of the communicator, for error messages
    threads: bool = False  # whether the ranks are threads of one process
    relatives: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet, compare=False, repr=False)
    """This rank's communicators of the same world of threads."""

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self.nodes.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.nodes.of)

    def part(self, members: Sequence[int], name: str) -> Group:
        """The group of some of the ranks, this one among them, in the order given."""
        nodes = place([self.nodes.of[rank] for rank in members], members.index(self.rank))
        return Group(nodes, tuple(self.world_ranks[rank] for rank in members), name, self.threads, self.relatives)
