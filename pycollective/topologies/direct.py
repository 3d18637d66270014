"""Direct: every rank reads every rank's memory."""

from pycollective.schedule import KiB, Program, topology


@topology("direct", small=64 * KiB, order="rank")
class Direct:
    """Every rank reads its peers directly and reduces in rank order: the default within a node.

    Costs for n ranks and S bytes, with latency α per round and time β per byte:
      allreduce, one-shot   1α +  (n-1) S β      every rank reduces everything for itself
      allreduce, two-shot   2α + 2(n-1)/n S β    rank c reduces chunk c and writes it to all
      scan, exscan          like allreduce; rank c computes every rank's result of chunk c
      all others            1α +  S β to n S β   one round, depending on the data through one rank

    Every element is reduced as ((x0 + x1) + x2) + ... in rank order, whatever the size of the message.
    The two-shot form is the reduce-scatter and allgather of Rabenseifner, "Optimization of Collective Reduction
    Operations" (ICCS 2004), with every exchange made in a single round.
    """

    def allreduce(self, p: Program) -> None:
        for c in p.chunks(p.size):
            p[p.ranks, c] = p.sum((p[q, c] for q in p.ranks), at=c)

    def allreduce_small(self, p: Program) -> None:
        for c in p.chunks(1):
            p[p.ranks, c] = p.sum(p[q, c] for q in p.ranks)

    def scan(self, p: Program) -> None:
        for c in p.chunks(p.size):
            for r in reversed(p.ranks[1:]):  # from the last rank on, which no other rank reads
                p[r, c] = p.sum((p[q, c] for q in p.ranks[: r + 1]), at=c)

    def scan_small(self, p: Program) -> None:
        for c in p.chunks(1):
            for r in reversed(p.ranks[1:]):
                p[r, c] = p.sum(p[q, c] for q in p.ranks[: r + 1])

    def exscan(self, p: Program) -> None:
        for c in p.chunks(p.size):
            for r in reversed(p.ranks[1:]):
                p[r, c] = p.sum((p[q, c] for q in p.ranks[:r]), at=c)

    def exscan_small(self, p: Program) -> None:
        for c in p.chunks(1):
            for r in reversed(p.ranks[1:]):
                p[r, c] = p.sum(p[q, c] for q in p.ranks[:r])

    def broadcast(self, p: Program, root: int) -> None:
        for c in p.chunks(p.size):  # the work is shared: rank c sends chunk c to all ranks
            p[p.ranks, c] = p.copy(p[root, c], at=c)

    def broadcast_small(self, p: Program, root: int) -> None:
        for c in p.chunks(1):
            p[p.ranks, c] = p[root, c]

    def reduce(self, p: Program, root: int) -> None:
        for c in p.chunks(p.size):
            p[root, c] = p.sum((p[q, c] for q in p.ranks), at=c)

    def reduce_small(self, p: Program, root: int) -> None:
        for c in p.chunks(1):
            p[root, c] = p.sum(p[q, c] for q in p.ranks)

    def reduce_scatter(self, p: Program) -> None:
        for c in p.chunks(p.size):
            p[c, c] = p.sum(p[q, c] for q in p.ranks)

    def allgather(self, p: Program) -> None:
        for c in p.chunks(p.size):
            p[p.ranks, c] = p[c, c]

    def gather(self, p: Program, root: int) -> None:
        for c in p.chunks(p.size):
            p[root, c] = p[c, c]

    def scatter(self, p: Program, root: int) -> None:
        for c in p.chunks(p.size):
            p[c, c] = p[root, c]

    def alltoall(self, p: Program) -> None:
        p.chunks(p.size**2)
        for s in p.ranks:
            for d in p.ranks:
                p[d, p.block(s, d)] = p[s, p.block(s, d)]
