"""Random: spanning trees of a random connected graph in which every rank has three neighbours."""

from dataclasses import dataclass

from pycollective import checks
from pycollective.graphs.generator import SplitMix64
from pycollective.graphs.random import regular_neighbours
from pycollective.schedule import KiB, Program, topology

_TREES = 3  # distinguishes these random numbers from others of the same seed


@topology("random", small=64 * KiB, order="chunk")
@dataclass(frozen=True)
class Random:
    """Every chunk goes up and down its own breadth-first spanning tree of a random regular graph.

    Costs for n ranks and S bytes, with latency α per hop, time β per byte, and h hops from a root to the farthest
    rank, about log2 n:
      allreduce                2hα + 2(n-1)/n S β    on average over the ranks; every rank is the root of a tree
      allreduce, small         2hα + h (degree) S β    one tree
      broadcast, reduce         hα +   (degree) S β    one tree for each of n chunks, all with the same root

    The graph has `degree` neighbours for each rank and depends on `seed`, as `pycollective.graphs.random_regular`.
    Only neighbours exchange data. Such graphs have short distances: Bollobás and Fernandez de la Vega, "The diameter of
    random regular graphs" (Combinatorica 1982).
    """

    seed: int = 0
    degree: int = 3

    def __post_init__(self) -> None:
        checks.integer(self.seed, "seed", 0)
        checks.integer(self.degree, "degree", 2)

    def allreduce(self, p: Program) -> None:
        for c in p.chunks(p.size):
            edges = self.tree(p.size, c, c)
            reduce_up(p, c, edges)
            hand_down(p, c, edges)

    def allreduce_small(self, p: Program) -> None:
        for c in p.chunks(1):
            edges = self.tree(p.size, 0, c)
            reduce_up(p, c, edges)
            hand_down(p, c, edges)

    def broadcast(self, p: Program, root: int) -> None:
        for c in p.chunks(p.size):
            hand_down(p, c, self.tree(p.size, root, c))

    def reduce(self, p: Program, root: int) -> None:
        for c in p.chunks(p.size):
            reduce_up(p, c, self.tree(p.size, root, c))

    def tree(self, size: int, root: int, chunk: int) -> list[tuple[int, int]]:
        """The (parent, child) pairs of a spanning tree, parents before their children.

        Breadth-first, so that no rank is farther from the root than in the graph; which of several possible parents a
        rank has is random and differs between chunks.
        """
        generator = SplitMix64(_TREES, self.seed, self.degree, chunk)
        neighbours = regular_neighbours(self.degree, self.seed, size)
        edges, reached, level = [], {root}, [root]
        while level:
            found = []
            for parent in generator.shuffled(level):
                for child in generator.shuffled(sorted(neighbours[parent] - reached)):
                    reached.add(child)
                    found.append(child)
                    edges.append((parent, child))
            level = found
        return edges


def reduce_up(p: Program, c: int, edges: list[tuple[int, int]]) -> None:
    for parent, child in reversed(edges):
        p[parent, c] += p[child, c]


def hand_down(p: Program, c: int, edges: list[tuple[int, int]]) -> None:
    for parent, child in edges:
        p[child, c] = p[parent, c]
