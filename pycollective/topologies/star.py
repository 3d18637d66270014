"""Star: everything goes through a hub, like a parameter server."""

from dataclasses import dataclass

from pycollective import checks
from pycollective.schedule import Program, topology


@topology("star", order="rank")
@dataclass(frozen=True)
class Star:
    """The hub collects, reduces in rank order, and distributes: the centralized parameter server.

    Costs for n ranks and S bytes, with latency α per hop and time β per byte; all data crosses the hub's link:
      allreduce                   2α + 2(n-1) S β
      broadcast, reduce           2α +  n S β         one hop and one copy less if the hub is the root
      scan, exscan                2α + 2(n-1) S β
      reduce_scatter, allgather   2α +  n S β
      gather, scatter             2α + 2(n-1)/n S β

    Li et al., "Scaling distributed machine learning with the parameter server" (OSDI 2014), with one server.
    """

    hub: int = 0

    def __post_init__(self) -> None:
        checks.integer(self.hub, "hub")

    def allreduce(self, p: Program) -> None:
        for c in p.chunks(p.pipeline):
            p[self.hub, c] = p.sum(p[q, c] for q in p.ranks)
            p[p.ranks, c] = p[self.hub, c]

    def scan(self, p: Program) -> None:
        for c in p.chunks(p.pipeline):
            for r in reversed(p.ranks[1:]):  # from the last rank, which the others' results do not need
                p[r, c] = p.sum((p[q, c] for q in p.ranks[: r + 1]), at=self.hub)

    def exscan(self, p: Program) -> None:
        for c in p.chunks(p.pipeline):
            for r in reversed(p.ranks[1:]):
                p[r, c] = p.sum((p[q, c] for q in p.ranks[:r]), at=self.hub)

    def broadcast(self, p: Program, root: int) -> None:
        for c in p.chunks(p.pipeline):
            p[self.hub, c] = p[root, c]
            p[p.ranks, c] = p[self.hub, c]

    def reduce(self, p: Program, root: int) -> None:
        for c in p.chunks(p.pipeline):
            p[self.hub, c] = p.sum(p[q, c] for q in p.ranks)
            p[root, c] = p[self.hub, c]

    def reduce_scatter(self, p: Program) -> None:
        for c in p.chunks(p.size):
            p[self.hub, c] = p.sum(p[q, c] for q in p.ranks)
            p[c, c] = p[self.hub, c]

    def allgather(self, p: Program) -> None:
        for c in p.chunks(p.size):
            p[self.hub, c] = p[c, c]
            p[p.ranks, c] = p[self.hub, c]

    def gather(self, p: Program, root: int) -> None:
        for c in p.chunks(p.size):
            p[self.hub, c] = p[c, c]
            p[root, c] = p[self.hub, c]

    def scatter(self, p: Program, root: int) -> None:
        for c in p.chunks(p.size):
            p[self.hub, c] = p[root, c]
            p[c, c] = p[self.hub, c]
