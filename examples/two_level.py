"""A topology that is not in the package: docs/add-a-topology.md explains its design.

    pycollective verify examples/two_level.py:two_level
    pycollective bench --topology examples/two_level.py:two_level --topology direct --ranks 4 --quick
    pycollective draw examples/two_level.py:two_level

or, in a program, `from two_level import TwoLevel` and `comm.allreduce(x, topology=TwoLevel(sockets=2))`.
"""

from dataclasses import dataclass

from pycollective.schedule import Program, topology


@topology("two_level", order="fixed")
@dataclass(frozen=True)
class TwoLevel:
    """Reduce within each socket, then across the sockets, and distribute within each socket again.

    Costs of an allreduce of S bytes on k sockets of m ranks, n = k m, with latency α per step, time β per byte within
    a socket and β' per byte between sockets:
      two_level   3α + 2(m-1)/m S β + 2(k-1)/n S β'
    """

    sockets: int = 2

    def groups(self, p: Program) -> list[range]:
        each = -(-p.size // self.sockets)  # consecutive ranks share a socket
        return [p.ranks[first : first + each] for first in range(0, p.size, each)]

    def allreduce(self, p: Program) -> None:
        for c in p.chunks(p.size):
            owners = {group[c % len(group)]: group for group in self.groups(p)}
            for owner, group in owners.items():
                p[owner, c] = p.sum(p[q, c] for q in group)
            p[owners, c] = p.sum((p[q, c] for q in owners), at=c)
            for owner, group in owners.items():
                p[group, c] = p[owner, c]

    def broadcast(self, p: Program, root: int) -> None:
        heads = {root if root in group else group[0]: group for group in self.groups(p)}
        for c in p.chunks(p.pipeline):
            p[heads, c] = p[root, c]
            for head, group in heads.items():
                p[group, c] = p[head, c]
