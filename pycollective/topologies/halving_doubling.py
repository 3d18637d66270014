"""Halving-doubling: in each round the group splits in two, and each rank pairs up with a rank of the other half."""

from pycollective.schedule import KiB, Program, topology

Ranks = list[int]


@topology("halving_doubling", small=64 * KiB, order="chunk")
class HalvingDoubling:
    """Reduce-scatter by recursive halving, allgather by recursive doubling, on any number of ranks.

    Costs for n ranks and S bytes, with latency α per round, time β per byte and h = log2 n rounded up:
      allreduce                  2hα + 2(n-1)/n S β    slightly more β if n is not a power of two
      allreduce, small            hα + h S β           recursive doubling of the full message
      reduce_scatter, allgather   hα + (n-1)/n S β     also gather and scatter, over a binomial tree
      broadcast, reduce          2hα + 2(n-1)/n S β    scatter and doubling, halving and gather
      scan, exscan                hα + h S β           recursive doubling; for exscan every rank first passes x on

    Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (IJHPCA 2005).
    If a group is odd its halves differ by one rank; the last of the smaller half then serves two.
    """

    def allreduce(self, p: Program) -> None:
        p.chunks(p.size)
        halve(p, list(p.ranks))
        double(p, list(p.ranks))

    def allreduce_small(self, p: Program) -> None:
        for c in p.chunks(1):
            swap(p, c, list(p.ranks))

    def reduce_scatter(self, p: Program) -> None:
        p.chunks(p.size)
        halve(p, list(p.ranks))

    def allgather(self, p: Program) -> None:
        p.chunks(p.size)
        double(p, list(p.ranks))

    def scan(self, p: Program) -> None:
        for c in p.chunks(p.pipeline):
            accumulate(p, c, list(p.ranks))

    def exscan(self, p: Program) -> None:
        for c in p.chunks(p.pipeline):
            for r in reversed(p.ranks[1:]):
                p[r, c] = p[r - 1, c]
            accumulate(p, c, list(p.ranks[1:]))

    def gather(self, p: Program, root: int) -> None:
        p.chunks(p.size)
        collect(p, ranks_from(root, p))

    def scatter(self, p: Program, root: int) -> None:
        p.chunks(p.size)
        spread(p, ranks_from(root, p))

    def reduce(self, p: Program, root: int) -> None:
        p.chunks(p.size)
        halve(p, ranks_from(root, p))
        collect(p, ranks_from(root, p))

    def broadcast(self, p: Program, root: int) -> None:
        p.chunks(p.size)
        spread(p, ranks_from(root, p))
        double(p, ranks_from(root, p))

    def broadcast_small(self, p: Program, root: int) -> None:
        for c in p.chunks(1):
            fan_out(p, c, ranks_from(root, p))


def ranks_from(root: int, p: Program) -> Ranks:
    return [(root + r) % p.size for r in p.ranks]


def halves(ranks: Ranks) -> tuple[Ranks, Ranks]:
    middle = (len(ranks) + 1) // 2
    return ranks[:middle], ranks[middle:]


def partners(i: int, ranks: Ranks, others: Ranks) -> Ranks:
    """The ranks of the other half that ranks[i] serves: its counterpart, for the last one also the remaining rank."""
    return others[i:] if i == len(ranks) - 1 else others[i : i + 1]


def halve(p: Program, ranks: Ranks) -> None:
    """Each half takes over the chunks of its own ranks, combined with the other half's."""
    if len(ranks) > 1:
        low, high = halves(ranks)
        for keep, give in ((low, high), (high, low)):
            for c in keep:
                for i, r in enumerate(keep):
                    p[r, c] = p.sum(p[q, c] for q in sorted([r, *partners(i, keep, give)]))
        halve(p, low)
        halve(p, high)


def double(p: Program, ranks: Ranks) -> None:
    """Each half has the chunks of its own ranks, and reads those of the other half from there."""
    if len(ranks) > 1:
        low, high = halves(ranks)
        double(p, low)
        double(p, high)
        for need, have in ((low, high), (high, low)):
            for c in have:
                for i, r in enumerate(need):
                    p[r, c] = p[have[min(i, len(have) - 1)], c]


def swap(p: Program, c: int, ranks: Ranks) -> None:
    """Pairs across the halves combine the values of both halves."""
    if len(ranks) > 1:
        low, high = halves(ranks)
        swap(p, c, low)
        swap(p, c, high)
        for i, r in enumerate(high):
            p[[r, *partners(i, high, low)], c] = p.sum((p[low[i], c], p[r, c]))


def accumulate(p: Program, c: int, ranks: Ranks) -> None:
    """Add to every rank in round k the value of the rank 2^k before it: the sum of the 2^k ranks up to there."""
    distance = 1
    while distance < len(ranks):
        for i in reversed(range(distance, len(ranks))):  # from the last one, which no rank reads
            p[ranks[i], c] = p.sum((p[ranks[i - distance], c], p[ranks[i], c]))
        distance *= 2


def spread(p: Program, ranks: Ranks) -> None:
    """The first rank passes the chunks of the second half to the first rank there."""
    if len(ranks) > 1:
        low, high = halves(ranks)
        for c in high:
            p[high[0], c] = p[low[0], c]
        spread(p, low)
        spread(p, high)


def collect(p: Program, ranks: Ranks) -> None:
    """The reverse of spread."""
    if len(ranks) > 1:
        low, high = halves(ranks)
        collect(p, low)
        collect(p, high)
        for c in high:
            p[low[0], c] = p[high[0], c]


def fan_out(p: Program, c: int, ranks: Ranks) -> None:
    """The first rank passes everything to the first rank of the second half: a binomial tree."""
    if len(ranks) > 1:
        low, high = halves(ranks)
        p[high[0], c] = p[low[0], c]
        fan_out(p, c, low)
        fan_out(p, c, high)
