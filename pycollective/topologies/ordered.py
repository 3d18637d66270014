"""Ordered: sums in rank order between hosts, passed on from host to host."""

from pycollective.schedule import KiB, Program, topology
from pycollective.topologies.direct import Direct


@topology("ordered", small=16 * KiB, order="rank")
class Ordered(Direct):
    """Like direct on one host; between hosts, sums in rank order are passed on from host to host.

    Costs for h hosts and S bytes, with latency α per message and time β per byte of a host's link, in each direction:
      allreduce, scan                2(h-1)α, (h-1)α; S β with two hosts, up to 2 S β with more
      reduce, reduce_scatter         h α, at most 2 S β
      one rank a host                like direct's: allreduce 2α + 2(h-1)/h S β
      small messages, all others     like direct's; small contributions of a host travel together

    A host adds its ranks to the sum of those before it, if the ranks of each host are consecutive; its ranks share the
    chunks. Otherwise all contributions cross, as in direct. Either way every element is reduced as ((x0 + x1) + x2) +
    ... in rank order: with the same bits as on one host.
    """

    def allreduce(self, p: Program) -> None:
        if not passes_sums(p):
            super().allreduce(p)
            return
        for c in p.chunks(shares(p)):
            last = add_hosts(p, c)
            others = p.hosts[-1]
            p[others, c] = p[last, c]
            for ranks in reversed(p.hosts[:-1]):  # the result goes back the same way
                owner = ranks[c % len(ranks)]
                p[owner, c] = p[last, c]
                p[ranks, c] = p[owner, c]
                last = owner

    def reduce(self, p: Program, root: int) -> None:
        if not passes_sums(p):
            super().reduce(p, root)
            return
        for c in p.chunks(shares(p)):
            p[root, c] = p[add_hosts(p, c), c]

    def reduce_scatter(self, p: Program) -> None:
        if not passes_sums(p):
            super().reduce_scatter(p)
            return
        for c in p.chunks(p.size):
            p[c, c] = p[add_hosts(p, c), c]

    def scan(self, p: Program) -> None:
        if not passes_sums(p):
            super().scan(p)
            return
        for c in p.chunks(shares(p)):
            for ranks in p.hosts:
                owner = ranks[c % len(ranks)]
                before = [ranks[0] - 1] if ranks[0] else []  # its result is the sum of all hosts before
                for r in reversed(ranks):  # from the last rank on, which no other rank reads
                    terms = [*before, *(q for q in ranks if q <= r)]
                    if terms != [r]:
                        p[r, c] = p.sum((p[q, c] for q in terms), at=owner)


def passes_sums(p: Program) -> bool:
    """Whether sums are passed on from host to host: the ranks of each host are consecutive, and some have several."""
    consecutive = all(ranks[-1] - ranks[0] + 1 == len(ranks) for ranks in p.hosts)
    return len(p.hosts) > 1 and consecutive and len(p.hosts) < p.size


def shares(p: Program) -> int:
    """The number of chunks that divides the work equally, or nearly so, among the ranks of every host."""
    counts = {len(ranks) for ranks in p.hosts}
    return counts.pop() if len(counts) == 1 else p.size


def add_hosts(p: Program, c: int) -> int:
    """Add up chunk c host by host; the rank of the last host that ends up with the sum."""
    before: list[int] = []
    for ranks in p.hosts:
        owner = ranks[c % len(ranks)]
        p[owner, c] = p.sum(p[q, c] for q in (*before, *ranks))
        before = [owner]
    return before[0]
