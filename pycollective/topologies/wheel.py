"""Wheel: a ring of all ranks but one, the rim, and a spoke from each of them to that rank, the hub."""

from dataclasses import dataclass
from itertools import pairwise

from pycollective import checks
from pycollective.schedule import KiB, Program, topology


@topology("wheel", small=64 * KiB, order="chunk")
@dataclass(frozen=True)
class Wheel:
    """Reduce-scatter around the rim, combine in the hub over the spokes and write back, allgather around the rim.

    Costs for n = m + 1 ranks and S bytes, with latency α per hop and time β per byte:
      allreduce, rim and spokes   2mα + 2 S β
      allreduce, spokes only      2α + 2m S β           small messages
      broadcast, rim and spokes   (m+1)α + 2 S β        S over the spokes, then S around the rim
      broadcast, spokes only      2α + (m+1) S β        small messages

    The hub's part crosses its link once in each direction, S bytes each. The best hub is therefore the rank that owns
    the link out of the node. The rim is the ring of Patarasuk and Yuan (JPDC 2009) on m ranks, the spokes are the
    star of a parameter server; their combination in a wheel is this library's own.
    """

    hub: int = 0

    def __post_init__(self) -> None:
        checks.integer(self.hub, "hub")

    def rim(self, p: Program) -> list[int]:
        return [(self.hub + spoke) % p.size for spoke in range(1, p.size)]

    def allreduce(self, p: Program) -> None:
        rim = self.rim(p)
        p.chunks(max(1, len(rim)))
        for c, owner in enumerate(rim):
            for q, r in pairwise(rim[c + 1 :] + rim[: c + 1]):  # around the rim to the owner
                p[r, c] += p[q, c]
            p[(owner, self.hub), c] = p.sum((p[owner, c], p[self.hub, c]), at=owner)
            for q, r in pairwise(rim[c:] + rim[:c]):  # and around again from it
                p[r, c] = p[q, c]

    def allreduce_small(self, p: Program) -> None:
        for c in p.chunks(1):
            p[self.hub, c] = p.sum(p[q, c] for q in p.ranks)
            p[self.rim(p), c] = p[self.hub, c]

    def broadcast(self, p: Program, root: int) -> None:
        rim = self.rim(p)
        p.chunks(max(1, len(rim)))
        for c, owner in enumerate(rim):
            p[self.hub, c] = p[root, c]
            p[owner, c] = p[self.hub, c]
            for q, r in pairwise(rim[c:] + rim[:c]):
                p[r, c] = p[q, c]

    def broadcast_small(self, p: Program, root: int) -> None:
        for c in p.chunks(1):
            p[self.hub, c] = p[root, c]
            p[self.rim(p), c] = p[self.hub, c]
