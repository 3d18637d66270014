"""Tree: two binary trees at once for large messages, one binomial tree for small ones."""

from dataclasses import dataclass

from pycollective import checks
from pycollective.schedule import KiB, Program, topology

Edges = list[tuple[int, list[int]]]
"""(parent, children) for every rank, children before parents: forwards it reduces, backwards it distributes."""


@topology("tree", small=64 * KiB, order="chunk")
@dataclass(frozen=True)
class Tree:
    """A double binary tree: each tree carries half of the data, and no rank is an inner node in both.

    Costs for n ranks and S bytes, with latency α per hop, time β per byte and h = log2 n:
      allreduce                    2hα + 2 S β            pipelined in chunks, once they fill the trees
      broadcast, reduce             hα +  S β
      allreduce, small             2hα + 2h S β           one binomial tree; broadcast and reduce half of it
      gather, scatter               hα + (n-1)/n S β      binomial

    Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (Parallel
    Computing 2009). The tiles pipeline data that flows in one direction; an allreduce turns around at the root, so
    it is divided into `segments` chunks per tree that follow each other up and down.
    """

    segments: int = 4

    def __post_init__(self) -> None:
        checks.integer(self.segments, "segments", 1)

    def allreduce(self, p: Program) -> None:
        trees = two_trees(list(p.ranks))
        for c in p.chunks(2 * self.segments):
            reduce_up(p, c, trees[c % 2])
            hand_down(p, c, trees[c % 2])

    def allreduce_small(self, p: Program) -> None:
        for c in p.chunks(1):
            reduce_up(p, c, binomial_tree(p.size))
            hand_down(p, c, binomial_tree(p.size))

    def broadcast(self, p: Program, root: int) -> None:
        trees = two_trees_below(root, p.size)
        for c in p.chunks(2):
            hand_down(p, c, trees[c])

    def broadcast_small(self, p: Program, root: int) -> None:
        for c in p.chunks(1):
            hand_down(p, c, binomial_tree(p.size, root))

    def reduce(self, p: Program, root: int) -> None:
        trees = two_trees_below(root, p.size)
        for c in p.chunks(2):
            reduce_up(p, c, trees[c])

    def reduce_small(self, p: Program, root: int) -> None:
        for c in p.chunks(1):
            reduce_up(p, c, binomial_tree(p.size, root))

    def gather(self, p: Program, root: int) -> None:
        for c in p.chunks(p.size):
            for parent, child in reversed(path_down(c, root, p.size)):
                p[parent, c] = p[child, c]

    def scatter(self, p: Program, root: int) -> None:
        for c in p.chunks(p.size):
            for parent, child in path_down(c, root, p.size):
                p[child, c] = p[parent, c]


def reduce_up(p: Program, c: int, tree: Edges) -> None:
    for parent, children in tree:
        p[parent, c] = p.sum(p[r, c] for r in (parent, *children))


def hand_down(p: Program, c: int, tree: Edges) -> None:
    for parent, children in reversed(tree):
        p[children, c] = p[parent, c]


def binary_tree(ranks: list[int]) -> Edges:
    """A binary search tree: the leaves are at positions 0, 2, 4, ... and the inner ranks between them.

    For seven ranks:        3
                         1     5
                        0 2   4 6
    """
    if not ranks:
        return []
    top = (1 << len(ranks).bit_length() - 1) - 1  # the subtree below it is full
    left, right = binary_tree(ranks[:top]), binary_tree(ranks[top + 1 :])
    return [*left, *right, (ranks[top], [below[-1][0] for below in (left, right) if below])]


def two_trees(ranks: list[int]) -> tuple[Edges, Edges]:
    """Two binary trees, the second over the ranks shifted by one, which turns inner ranks into leaves."""
    return binary_tree(ranks), binary_tree(ranks[1:] + ranks[:1])


def two_trees_below(root: int, size: int) -> tuple[Edges, Edges]:
    """Two trees over the other ranks, each with the root on top."""
    first, second = two_trees([(root + r) % size for r in range(1, size)])
    return [*first, (root, [r for r, _ in first[-1:]])], [*second, (root, [r for r, _ in second[-1:]])]


def binomial_tree(size: int, root: int = 0) -> Edges:
    """Counted from the root, the parent of r is r without its lowest bit."""
    tree = []
    for r in reversed(range(size)):
        steps = [1 << bit for bit in range(size.bit_length()) if r % (2 << bit) == 0 and r + (1 << bit) < size]
        tree.append(((root + r) % size, [(root + r + step) % size for step in steps]))
    return tree


def path_down(rank: int, root: int, size: int) -> list[tuple[int, int]]:
    """The (parent, child) pairs from the root to a rank in the binomial tree."""
    path = []
    r = (rank - root) % size
    while r:
        parent = r & (r - 1)
        path.append(((root + parent) % size, (root + r) % size))
        r = parent
    return path[::-1]
