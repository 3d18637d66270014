"""Hierarchical: one topology within each host, another one between the hosts."""

import math
from dataclasses import dataclass

from pycollective import checks
from pycollective.schedule import KiB, Program, topology, trace
from pycollective.schedule.language import registry
from pycollective.schedule.language.composition import embed


@topology("hierarchical", small=64 * KiB, order="chunk")
@dataclass(frozen=True)
class Hierarchical:
    """The topology `inner` within each host and `outer` between hosts; on one host, `inner` alone.

    Costs for h hosts and S bytes, on each host's link in each direction:
      allreduce        inner reduce_scatter, outer allreduce of each chunk, inner allgather: that of outer on h ranks
      reduce_scatter   inner, then outer on the chunks of each rank of a host; allgather the other way round
      all others       through one rank of each host, the leader; also if hosts have different numbers of ranks

    The leader is the root on its host, the first rank on the others. Small messages go through the leaders.
    """

    inner: str = "direct"
    outer: str = "ring"

    def __post_init__(self) -> None:
        checks.text(self.inner, "inner")
        checks.text(self.outer, "outer")

    def allreduce(self, p: Program) -> None:
        if not (self.in_columns(p) and "reduce_scatter" in registry.info(registry.get(self.inner)).collectives):
            self.allreduce_by_leaders(p, small=False)
            return
        count = len(p.hosts[0])
        between = self.between(p, "allreduce")
        pieces = between.chunk_count
        chunks = p.chunks(count * pieces)
        shares = [chunks[i * pieces : (i + 1) * pieces] for i in range(count)]
        for ranks in p.hosts:
            embed(p, self.within("reduce_scatter", count), ranks, shares)
        for column, share in zip(zip(*p.hosts, strict=True), shares, strict=True):
            embed(p, between, column, share)
        for ranks in p.hosts:
            embed(p, self.within("allgather", count), ranks, shares)

    def allreduce_small(self, p: Program) -> None:
        self.allreduce_by_leaders(p, small=True)

    def allreduce_by_leaders(self, p: Program, small: bool) -> None:
        if len(p.hosts) == 1:
            program = self.within("allreduce", p.size, small=small)
            embed(p, program, p.ranks, p.chunks(program.chunk_count))
        else:
            self.by_leaders(p, "reduce", "allreduce", "broadcast", small=small)

    def broadcast(self, p: Program, root: int) -> None:
        self.by_leaders(p, "", "broadcast", "broadcast", root)

    def reduce(self, p: Program, root: int) -> None:
        self.by_leaders(p, "reduce", "reduce", "", root)

    def by_leaders(
        self, p: Program, first: str, between: str, last: str, root: int | None = None, small: bool = False
    ) -> None:
        """A collective on each host, then one between the leaders, then one on each host again; "": none."""

        def on_hosts(collective: str) -> list[tuple[Program, tuple[int, ...]]]:
            here = zip(p.hosts, leaders(p, root), strict=True) if collective else ()
            return [(self.within(collective, len(ranks), ranks.index(top), small), ranks) for ranks, top in here]

        parts = [*on_hosts(first), (self.between(p, between, root, small), leaders(p, root)), *on_hosts(last)]
        chunks = common_chunks(p, *(program for program, _ in parts))
        for program, ranks in parts:
            embed(p, program, ranks, chunks)

    def reduce_scatter(self, p: Program) -> None:
        chunks = p.chunks(p.size)
        if not self.in_columns(p):
            for ranks in p.hosts:
                embed(p, self.within("reduce", len(ranks), 0), ranks, chunks)
            embed(p, self.between(p, "reduce_scatter"), leaders(p), p.hosts)
            for ranks in p.hosts:
                embed(p, self.within("scatter", len(ranks), 0), ranks, [[rank] for rank in ranks])
            return
        columns = list(zip(*p.hosts, strict=True))
        for ranks in p.hosts:
            embed(p, self.within("reduce_scatter", len(ranks)), ranks, columns)
        for column in columns:
            embed(p, self.between(p, "reduce_scatter"), column, [[rank] for rank in column])

    def allgather(self, p: Program) -> None:
        chunks = p.chunks(p.size)
        if not self.in_columns(p):
            for ranks in p.hosts:
                embed(p, self.within("gather", len(ranks), 0), ranks, [[rank] for rank in ranks])
            embed(p, self.between(p, "allgather"), leaders(p), p.hosts)
            for ranks in p.hosts:
                embed(p, self.within("broadcast", len(ranks), 0), ranks, chunks)
            return
        columns = list(zip(*p.hosts, strict=True))
        for column in columns:
            embed(p, self.between(p, "allgather"), column, [[rank] for rank in column])
        for ranks in p.hosts:
            embed(p, self.within("allgather", len(ranks)), ranks, columns)

    def in_columns(self, p: Program) -> bool:
        """Return whether all hosts have the same number of ranks: the i-th ranks of all hosts form a column."""
        return len({len(ranks) for ranks in p.hosts}) == 1

    def within(self, collective: str, size: int, root: int | None = None, small: bool = False) -> Program:
        """The program of the ranks of one host."""
        return trace(self.inner, collective, size, root, small)

    def between(self, p: Program, collective: str, root: int | None = None, small: bool = False) -> Program:
        """The program of one rank of each host."""
        hosts = range(len(p.hosts))
        where = None if root is None else next(host for host in hosts if root in p.hosts[host])
        return trace(self.outer, collective, len(p.hosts), where, small, hosts=hosts)


def leaders(p: Program, root: int | None = None) -> list[int]:
    """One rank of each host: the root on its own, the first rank on the others."""
    return [root if root is not None and root in ranks else ranks[0] for ranks in p.hosts]


def common_chunks(p: Program, *parts: Program) -> range:
    """Divide the buffer so that every part's chunks are whole numbers of chunks."""
    return p.chunks(math.lcm(*(part.chunk_count for part in parts)))
