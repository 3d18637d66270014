"""Ordered: sums in rank order between hosts, passed on from host to host."""

from collections.abc import Sequence
from dataclasses import dataclass

from pycollective import checks
from pycollective.schedule import KiB, Program, topology
from pycollective.topologies.direct import Direct


@topology("ordered", small=16 * KiB, order="rank")
@dataclass(frozen=True)
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

    Of each host, one rank in `one_in` adds up and sends chunks of allreduce, reduce and scan: few, larger messages cost
    less than many until adding takes longer. On 2 x 4 ranks that share two cores, one_in=4 takes 105 us instead of 155
    for 32 KiB, 155 instead of 190 for 64 KiB, and as long for 256 KiB.
    """

    one_in: int = 1

    def __post_init__(self) -> None:
        checks.integer(self.one_in, "one_in", 1)

    def allreduce(self, p: Program) -> None:
        if not passes_sums(p):
            super().allreduce(p)
            return
        for c in p.chunks(self.shares(p)):
            last = self.add_hosts(p, c)
            others = p.hosts[-1]
            p[others, c] = p[last, c]
            for ranks in reversed(p.hosts[:-1]):  # the result goes back the same way
                owner = self.owner(ranks, c)
                p[owner, c] = p[last, c]
                p[ranks, c] = p[owner, c]
                last = owner

    def reduce(self, p: Program, root: int) -> None:
        if not passes_sums(p):
            super().reduce(p, root)
            return
        for c in p.chunks(self.shares(p)):
            p[root, c] = p[self.add_hosts(p, c), c]

    def reduce_scatter(self, p: Program) -> None:
        if not passes_sums(p):
            super().reduce_scatter(p)
            return
        for c in p.chunks(p.size):
            p[c, c] = p[Ordered().add_hosts(p, c), c]  # its chunks are smaller, and go to all ranks

    def scan(self, p: Program) -> None:
        if not passes_sums(p):
            super().scan(p)
            return
        for c in p.chunks(self.shares(p)):
            for ranks in p.hosts:
                owner = self.owner(ranks, c)
                before = [ranks[0] - 1] if ranks[0] else []  # its result is the sum of all hosts before
                for r in reversed(ranks):  # from the last rank on, which no other rank reads
                    terms = [*before, *(q for q in ranks if q <= r)]
                    if terms != [r]:
                        p[r, c] = p.sum((p[q, c] for q in terms), at=owner)

    def owner(self, ranks: Sequence[int], c: int) -> int:
        """The rank of a host that adds up chunk c."""
        owners = ranks[:: self.one_in]
        return owners[c % len(owners)]

    def shares(self, p: Program) -> int:
        """The number of chunks that divides the work equally, or nearly so, among the owners of every host."""
        counts = {len(ranks[:: self.one_in]) for ranks in p.hosts}
        return counts.pop() if len(counts) == 1 else -(-p.size // self.one_in)

    def add_hosts(self, p: Program, c: int) -> int:
        """Add up chunk c host by host; the rank of the last host that ends up with the sum."""
        before: list[int] = []
        for ranks in p.hosts:
            owner = self.owner(ranks, c)
            p[owner, c] = p.sum(p[q, c] for q in (*before, *ranks))
            before = [owner]
        return before[0]


def passes_sums(p: Program) -> bool:
    """Return whether sums are passed from host to host: each host's ranks are consecutive, and some have several."""
    consecutive = all(ranks[-1] - ranks[0] + 1 == len(ranks) for ranks in p.hosts)
    return len(p.hosts) > 1 and consecutive and len(p.hosts) < p.size
