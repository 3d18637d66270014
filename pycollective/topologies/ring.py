"""Ring: every rank communicates with its two neighbours only."""

from itertools import pairwise

from pycollective.schedule import Program, topology


@topology("ring", order="chunk")
class Ring:
    """Reduce-scatter around the ring, then allgather around it: bandwidth-optimal with neighbours only.

    Costs for n ranks and S bytes, with latency α per hop and time β per byte:
      allreduce                  2(n-1)α + 2(n-1)/n S β
      reduce_scatter, allgather   (n-1)α +  (n-1)/n S β
      broadcast, reduce, scan     (n-1)α +  S β           a chain, which the tiles pipeline
      exscan                       nα + 2 S β             the same, after every rank has passed on its x

    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (JPDC 2009).
    """

    def allreduce(self, p: Program) -> None:
        for c in p.chunks(p.size):  # chunk c starts its journey at rank c
            for hop in range(1, p.size):
                p[c + hop, c] += p[c + hop - 1, c]
            for hop in range(p.size, 2 * p.size - 1):
                p[c + hop, c] = p[c + hop - 1, c]

    def broadcast(self, p: Program, root: int) -> None:
        for c in p.chunks(p.pipeline):
            for hop in range(1, p.size):
                p[root + hop, c] = p[root + hop - 1, c]

    def reduce(self, p: Program, root: int) -> None:
        for c in p.chunks(p.pipeline):  # starts behind the root and ends at it
            for hop in range(2, p.size + 1):
                p[root + hop, c] += p[root + hop - 1, c]

    def scan(self, p: Program) -> None:
        for c in p.chunks(p.pipeline):
            for q, r in pairwise(p.ranks):
                p[r, c] = p.sum((p[q, c], p[r, c]))

    def exscan(self, p: Program) -> None:
        for c in p.chunks(p.pipeline):
            for r in reversed(p.ranks[1:]):
                p[r, c] = p[r - 1, c]
            for q, r in pairwise(p.ranks[1:]):
                p[r, c] = p.sum((p[q, c], p[r, c]))

    def reduce_scatter(self, p: Program) -> None:
        for c in p.chunks(p.size):  # starts behind rank c and ends at it
            for hop in range(2, p.size + 1):
                p[c + hop, c] += p[c + hop - 1, c]

    def allgather(self, p: Program) -> None:
        for c in p.chunks(p.size):
            for hop in range(1, p.size):
                p[c + hop, c] = p[c + hop - 1, c]
