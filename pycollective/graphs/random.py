"""Random graphs from a seed that all ranks share: new pairs in every step, and regular graphs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial

from pycollective import checks
from pycollective.graphs.generator import SplitMix64
from pycollective.graphs.graph import Graph, Weights, even, metropolis_hastings

_PAIRS, _REGULAR = 1, 2  # so that graphs with the same seed draw different numbers

Edge = tuple[int, int]


def random_pairs(seed: int = 0) -> Graph:
    """Random pairs, new in every step; both of a pair take their mean.

    With an odd number of ranks one stays alone. The matchings of the steps are independent and uniform: drawn by
    SplitMix64 from (seed, size, step). In expectation a step multiplies the squared disagreement by (n-2)/(2(n-1)) for
    even n and by 1/2 for odd n; Boyd, Ghosh, Prabhakar and Shah, "Randomized gossip algorithms" (2006), who have one
    pair at a time.

    Args:
        seed: at least 0, the same on all ranks.

    Raises:
        ValueError, TypeError: not an integer, or negative.
    """
    seed = checks.integer(seed, "seed", 0)
    return Graph(f"random_pairs(seed={seed})", partial(_pairs, seed), None, _pairs_contraction)


def _pairs(seed: int, rank: int, size: int, step: int) -> Weights:
    return even({rank, _matching(seed, size, step)[rank]})


def _pairs_contraction(size: int) -> float:
    """W is a projection, so that WᵀW = W, of which the expectation is known: a rank meets every other equally often."""
    if size < 3:
        return 0.0
    return 0.5 if size % 2 else (size - 2) / (2 * (size - 1))


@lru_cache(maxsize=64)
def _matching(seed: int, size: int, step: int) -> tuple[int, ...]:
    """The partner of each rank; its own number if it stays alone."""
    order = SplitMix64(_PAIRS, seed, size, step).shuffled(range(size))
    partners = list(range(size))
    for one, other in zip(order[::2], order[1::2], strict=False):
        partners[one], partners[other] = other, one
    return tuple(partners)


def random_regular(degree: int = 3, seed: int = 0) -> Graph:
    """A connected random graph in which every rank has `degree` neighbours, the same in every step.

    Random regular graphs have nearly the largest spectral gap that graphs of their degree can have, whatever their size
    (Friedman, "A proof of Alon's second eigenvalue conjecture", 2008). The weights are those of Metropolis-Hastings,
    1/(degree + 1) each. If degree and the number of ranks are odd, there is no such graph: one rank has a neighbour
    fewer. Up to degree + 1 ranks it is the complete graph.

    Args:
        degree: neighbours of a rank, at least 2.
        seed: at least 0, the same on all ranks; drawn by SplitMix64 from (seed, degree, size).

    Raises:
        ValueError, TypeError: not integers, or too small.
    """
    degree, seed = checks.integer(degree, "degree", 2), checks.integer(seed, "seed", 0)
    return Graph(f"random_regular(degree={degree}, seed={seed})", partial(_regular, degree, seed))


def _regular(degree: int, seed: int, rank: int, size: int, step: int) -> Weights:
    return metropolis_hastings(rank, regular_neighbours(degree, seed, size))


@lru_cache(maxsize=16)
def regular_neighbours(degree: int, seed: int, size: int) -> list[set[int]]:
    """The neighbours of each rank in the connected graph of `random_regular`; not to be changed."""
    if size <= degree + 1:
        return [set(range(size)) - {rank} for rank in range(size)]
    generator = SplitMix64(_REGULAR, seed, degree, size)
    if 2 * degree < size:  # a random ring connects all; the other edges are random, too
        order = generator.shuffled(range(size))
        ring = {_edge(order[i - 1], order[i]) for i in range(size)}
        short = [generator.below(size)] * (size * degree % 2)
        edges = ring | _random_edges(size, degree - 2, [], short, ring, generator)
    else:  # all edges but those of a random graph: two ranks are adjacent or have a common neighbour
        rest = size - 1 - degree
        long = [generator.below(size)] * (size * rest % 2)
        absent = _random_edges(size, rest, long, [], set(), generator)
        edges = {(r, s) for s in range(size) for r in range(s)} - absent
    neighbours: list[set[int]] = [set() for _ in range(size)]
    for r, s in edges:
        neighbours[r].add(s)
        neighbours[s].add(r)
    return neighbours


def _random_edges(
    size: int, degree: int, long: list[int], short: list[int], taken: set[Edge], generator: SplitMix64
) -> set[Edge]:
    """Random edges, none of them in `taken`, of which each rank has `degree`.

    `long`, `short`: ranks with one more, and one fewer. Ends of edges are joined at random; a pair that cannot be
    joined takes the place of an edge, of which both ends are free for it then.
    """
    while True:
        ends = [rank for rank in range(size) for _ in range(degree + long.count(rank) - short.count(rank))]
        ends = generator.shuffled(ends)
        edges: set[Edge] = set()
        for r, s in zip(ends[::2], ends[1::2], strict=True):
            if r != s and _edge(r, s) not in edges | taken:
                edges.add(_edge(r, s))
            elif swaps := list(_swaps(r, s, edges, taken)):
                a, b = swaps[generator.below(len(swaps))]
                edges.remove(_edge(a, b))
                edges |= {_edge(r, a), _edge(s, b)}
            else:
                break
        else:
            return edges


def _swaps(r: int, s: int, edges: set[Edge], taken: set[Edge]) -> Iterator[Edge]:
    """The edges (a, b) that could be replaced by (r, a) and (s, b)."""
    present = edges | taken
    for edge in sorted(edges):
        for a, b in (edge, edge[::-1]):
            if len({r, a}) == len({s, b}) == 2 and not {_edge(r, a), _edge(s, b)} & present:
                yield a, b


def _edge(r: int, s: int) -> Edge:
    return (r, s) if r < s else (s, r)
