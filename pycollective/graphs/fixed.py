"""Graphs without chance: ring, star, complete, exponential, one-peer exponential, and any graph of networkx."""

from __future__ import annotations

from functools import partial
from typing import Any

from pycollective import checks
from pycollective.graphs.graph import Graph, Weights, even, metropolis_hastings


def _ring(rank: int, size: int, step: int) -> Weights:
    return even({(rank - 1) % size, rank, (rank + 1) % size})


def _star(rank: int, size: int, step: int) -> Weights:
    if rank == 0:
        return even(range(size))
    return {0: 1 / size, rank: 1 - 1 / size}


def _complete(rank: int, size: int, step: int) -> Weights:
    return even(range(size))


def _exponential(rank: int, size: int, step: int) -> Weights:
    return even({rank, *((rank - (1 << k)) % size for k in range(_hops(size)))})


def _one_peer(rank: int, size: int, step: int) -> Weights:
    return even({rank, (rank - (1 << step % _hops(size))) % size})


def _hops(size: int) -> int:
    """The powers of two below size: log2(size), rounded up; for one rank 1, which leads back to it."""
    return max(1, (size - 1).bit_length())


ring = Graph("ring", _ring)
"""Each rank reads its two neighbours and itself with 1/3 each; 2 ranks with 1/2, where the two are one."""

star = Graph("star", _star)
"""Rank 0 reads all, the others read rank 0: weight 1/n each (Metropolis-Hastings), and 1 - 1/n for themselves."""

complete = Graph("complete", _complete)
"""Everyone reads everyone with 1/n: an average of all ranks in one step."""

exponential = Graph("exponential", _exponential)
"""Rank r reads r - 1, r - 2, r - 4, ... and itself, all with the same weight.

Assran et al., "Stochastic Gradient Push for Distributed Deep Learning" (ICML 2019). The spectral gap is 2/(1 + h), with
h = log2 n rounded up, for even n and larger for odd n: Ying et al., "Exponential Graph is Provably Efficient for
Decentralized Deep Training" (NeurIPS 2021), proposition 1.
"""

one_peer = Graph("one_peer", _one_peer, _hops)
"""In step t rank r reads r - 2^(t mod h) and itself with 1/2 each; h = log2 n rounded up.

One neighbour per step, and on 2^h ranks the exact mean after h steps: Assran et al. 2019, Ying et al. 2021, lemma 1.
"""


def from_networkx(graph: Any) -> Graph:
    """A graph of networkx, or any object with `nodes` and `neighbors(node)`, with Metropolis-Hastings weights.

    The ranks are the nodes if these are the numbers 0 to n-1, else their positions in `graph.nodes`. Weights of edges
    are ignored, and so are edges from a node to itself. The graph is read once, now; it must be the same on all ranks.
    In one that is not connected the ranks never agree: its spectral gap is 0.

    Args:
        graph: undirected, or with each edge in both directions.

    Returns:
        a Graph for as many ranks as there are nodes.

    Raises:
        TypeError: no `nodes` or no `neighbors`.
        ValueError: no nodes, or an edge in one direction only.
    """
    if not hasattr(graph, "nodes") or not callable(getattr(graph, "neighbors", None)):
        checks.refuse_type("graph", "a graph of networkx, with nodes and neighbors", graph)
    nodes = list(graph.nodes)
    if not nodes:
        raise ValueError("the graph has no nodes")
    if set(nodes) == set(range(len(nodes))):
        nodes = list(range(len(nodes)))
    ranks = {node: rank for rank, node in enumerate(nodes)}
    neighbours = [{ranks[other] for other in graph.neighbors(node)} - {rank} for node, rank in ranks.items()]
    for rank, mine in enumerate(neighbours):
        for other in sorted(mine):
            if rank not in neighbours[other]:
                raise ValueError(f"the edge {nodes[rank]!r} - {nodes[other]!r} has one direction; mixing needs both")
    return Graph("from_networkx", partial(_of_nodes, neighbours))


def _of_nodes(neighbours: list[set[int]], rank: int, size: int, step: int) -> Weights:
    if size != len(neighbours):
        raise ValueError(f"the graph has {len(neighbours)} nodes, but there are {size} ranks")
    return metropolis_hastings(rank, neighbours)
