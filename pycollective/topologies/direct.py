"""Direct: everybody reads everybody's memory."""

from pycollective.schedule import KiB, Program, topology


@topology("direct", small=64 * KiB, order="rank")
class Direct:
    """Every rank reads its peers directly and reduces in rank order: the default within a node.

    Costs for n ranks and S bytes, with latency a a round and time b a byte:
      one-shot allreduce   1 a +  (n-1) S b           every rank reduces everything for itself
      two-shot allreduce   2 a + 2(n-1)/n S b         rank c reduces chunk c and writes it to all

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

    def broadcast(self, p: Program, root: int) -> None:
        others = [r for r in p.ranks if r != root]
        for c in p.chunks(p.size):  # the work is shared: rank c hands chunk c to everybody
            if others:
                p[others, c] = p.copy(p[root, c], at=c)

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
