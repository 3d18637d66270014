"""The ranks of a communicator, from one rank's view."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pycollective.comm.bootstrap.nodes import Nodes, place

if TYPE_CHECKING:  # without PYCOLLECTIVE_TUNING it is not loaded
    from pycollective.comm.tuning_file import TuningFile, World


@dataclass(frozen=True, slots=True)
class Group:
    """An ordered set of ranks, with their hosts and names."""

    nodes: Nodes  # the host of every rank
    world_ranks: tuple[int, ...]  # the ranks' numbers in the world, for error messages
    name: str  # of the communicator, for error messages
    threads: bool = False  # whether the ranks are threads of one process
    relatives: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet, compare=False, repr=False)
    """This rank's communicators of the same world of threads."""
    tuning: TuningFile | None = field(default=None, compare=False, repr=False)
    """The first rank's, of the job."""

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
        world_ranks = tuple(self.world_ranks[rank] for rank in members)
        return Group(nodes, world_ranks, name, self.threads, self.relatives, self.tuning)

    @property
    def tuned(self) -> World | None:
        """What was measured for as many ranks on as many hosts."""
        return self.tuning.world(self.nodes.of) if self.tuning is not None else None
