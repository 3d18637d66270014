"""Graphs of neighbours for gossip: which ranks a rank reads in a step of `comm.mix`, and with which weights.

    from pycollective import graphs

    graphs.ring(2, 8)                       # {1: 1/3, 2: 1/3, 3: 1/3}: rank 2 of 8 reads its two neighbours
    graphs.random_pairs(seed=1)(2, 8, 5)    # whom rank 2 is paired with in step 5, the same on all ranks
    graphs.one_peer.matrix(8, step=1)       # all weights of a step: row r has those of rank r
    graphs.exponential.spectral_gap(8)      # the part of the disagreement that a step removes, in the long run

A graph is any function of (rank, size, step) that returns {source: weight}. Those here are pure functions, for any
number of ranks: their results depend on their arguments only, never on the platform or the version of Python. All
their matrices are doubly stochastic (each rank's weights sum to 1, and so do the weights with which it is read), so
that mixing keeps the mean over the ranks.
"""

from pycollective.graphs.fixed import complete, exponential, from_networkx, one_peer, ring, star
from pycollective.graphs.graph import Graph
from pycollective.graphs.random import random_pairs, random_regular

__all__ = [
    "Graph",
    "complete",
    "exponential",
    "from_networkx",
    "one_peer",
    "random_pairs",
    "random_regular",
    "ring",
    "star",
]
