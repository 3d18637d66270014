"""The graphs of neighbours: doubly stochastic for any number of ranks, deterministic, and connected."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from pycollective import graphs
from pycollective.graphs.generator import SplitMix64

FIXED = [graphs.ring, graphs.star, graphs.complete, graphs.exponential, graphs.one_peer]
REGULAR = [graphs.random_regular(degree, seed=5) for degree in (2, 3, 4, 7)]
ALL = [*FIXED, *REGULAR, graphs.random_pairs(seed=5)]
SIZES = [*range(1, 18), 64]

# What random_pairs(7) drew for 8 ranks in step 3, and random_regular(3, 7) for ranks 0 to 3 of 8, once and for all.
PAIRS = [5, 2, 1, 4, 3, 0, 7, 6]
NEIGHBOURS = [[1, 2, 5], [0, 3, 7], [0, 3, 5], [1, 2, 4]]


def neighbours_of(nodes, edges):
    """What from_networkx reads of a graph."""
    around = {node: [b if a == node else a for a, b in edges if node in (a, b)] for node in nodes}
    return SimpleNamespace(nodes=nodes, neighbors=around.get)


ONE_WAY = SimpleNamespace(nodes=[0, 1], neighbors=lambda node: [1])


@pytest.mark.parametrize("graph", ALL, ids=repr)
def test_rows_and_columns_sum_to_one_and_have_the_rank_itself(graph):
    for size, step in itertools.product(SIZES, range(5)):
        matrix = graph.matrix(size, step)
        for sums in (matrix.sum(0), matrix.sum(1)):
            np.testing.assert_allclose(sums, 1, rtol=0, atol=1e-15 * size)
        assert (matrix >= 0).all() and (np.diag(matrix) > 0).all()
        for rank in range(size):
            assert list(graph(rank, size, step)) == sorted(graph(rank, size, step))


def test_the_weights_that_the_names_promise():
    assert graphs.ring(0, 5) == {0: 1 / 3, 1: 1 / 3, 4: 1 / 3}
    assert graphs.ring(0, 2) == {0: 0.5, 1: 0.5}
    assert graphs.ring(0, 1) == {0: 1.0}
    assert graphs.star(0, 4) == {0: 0.25, 1: 0.25, 2: 0.25, 3: 0.25}
    assert graphs.star(2, 4) == {0: 0.25, 2: 0.75}
    assert graphs.exponential(0, 8) == {0: 0.25, 4: 0.25, 6: 0.25, 7: 0.25}
    assert [graphs.one_peer(1, 6, step) for step in range(4)] == [
        {0: 0.5, 1: 0.5}, {1: 0.5, 5: 0.5}, {1: 0.5, 3: 0.5}, {0: 0.5, 1: 0.5},
    ]  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
def test_random_pairs_are_a_matching_that_leaves_one_rank_alone_at_most(size):
    graph = graphs.random_pairs(seed=1)
    seen = set()
    for step in range(20):
        partners = {rank: next((s for s in graph(rank, size, step) if s != rank), rank) for rank in range(size)}
        assert all(partners[partners[rank]] == rank for rank in partners)
        assert sum(partners[rank] == rank for rank in partners) == size % 2
        seen.add(tuple(partners.values()))
    assert len(seen) > 1 or size < 3


@pytest.mark.parametrize("degree", [2, 3, 4, 6, 9])
@pytest.mark.parametrize("size", [*range(1, 18), 50])
def test_random_regular_graphs_are_regular_and_connected(size, degree):
    for seed in range(3):
        adjacent = graphs.random_regular(degree, seed).matrix(size) > 0
        assert (adjacent == adjacent.T).all()
        degrees = sorted(adjacent.sum(1) - 1)
        expected = min(degree, size - 1)
        assert degrees == [expected - 1] * (size * expected % 2) + [expected] * (size - size * expected % 2)
        reached = np.linalg.matrix_power(adjacent.astype(float), size) > 0
        assert reached.all()


def test_seeds_sizes_and_steps_draw_different_graphs():
    assert len({tuple(map(tuple, graphs.random_regular(3, seed).matrix(16))) for seed in range(20)}) == 20
    assert len({tuple(map(tuple, graphs.random_pairs(seed).matrix(16))) for seed in range(20)}) == 20


def test_the_generator_is_splitmix64_and_known_graphs_stay_what_they_are():
    """Ranks of different versions or platforms would mix with each other wrongly otherwise."""
    generator = SplitMix64()
    first = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # of the reference implementation, seed 0
    assert [generator.draw() for _ in first] == first
    assert [next(s for s in graphs.random_pairs(7)(r, 8, 3) if s != r) for r in range(8)] == PAIRS
    assert [sorted(set(graphs.random_regular(3, 7)(r, 8)) - {r}) for r in range(4)] == NEIGHBOURS


def test_the_spectral_gaps_that_are_known():
    for n in range(3, 20):
        assert graphs.ring.spectral_gap(n) == pytest.approx(
            1 - max(abs(1 + 2 * math.cos(2 * math.pi * k / n)) / 3 for k in range(1, n))
        )
        assert graphs.star.spectral_gap(n) == pytest.approx(1 / n)
    for n in range(2, 40, 2):  # Ying et al., proposition 1
        assert graphs.exponential.spectral_gap(n) == pytest.approx(2 / (1 + math.ceil(math.log2(n))))
    assert all(graphs.complete.spectral_gap(n) == 1 for n in range(1, 9))
    assert all(graphs.one_peer.spectral_gap(1 << k) == 1 for k in range(6))
    assert graphs.one_peer.spectral_gap(6) < 1
    assert graphs.random_pairs().spectral_gap(8) == pytest.approx(1 - math.sqrt(6 / 14))
    assert graphs.random_pairs().spectral_gap(7) == pytest.approx(1 - math.sqrt(1 / 2))
    assert graphs.from_networkx(neighbours_of([0, 1, 2, 3], [(0, 1), (2, 3)])).spectral_gap(4) == pytest.approx(0)


def test_the_mean_contraction_of_random_pairs_is_that_of_all_matchings():
    """The expectation over many matchings approaches the closed form, which holds for every x."""
    for n in (5, 6):
        graph = graphs.random_pairs(seed=2)
        mean = sum(graph.matrix(n, step) for step in range(4000)) / 4000
        second = np.sort(np.linalg.eigvalsh(mean))[-2]
        assert second == pytest.approx(0.5 if n % 2 else (n - 2) / (2 * (n - 1)), abs=0.02)


def test_metropolis_hastings_weights_of_any_graph():
    path = graphs.from_networkx(neighbours_of(["a", "b", "c"], [("a", "b"), ("b", "c"), ("c", "c")]))
    assert path(0, 3) == {0: pytest.approx(2 / 3), 1: 1 / 3}
    assert path(1, 3) == {0: 1 / 3, 1: pytest.approx(1 / 3), 2: 1 / 3}
    mixed_up = graphs.from_networkx(neighbours_of([2, 0, 1], [(0, 1)]))  # numbers are ranks, whatever their order
    assert mixed_up(0, 3) == {0: 0.5, 1: 0.5}
    networkx = pytest.importorskip("networkx")
    matrix = graphs.from_networkx(networkx.star_graph(4)).matrix(5)
    np.testing.assert_allclose(matrix, graphs.star.matrix(5))


@pytest.mark.parametrize(
    "call, error, reason",
    [
        (lambda: graphs.ring(4, 4), ValueError, "rank must be an integer from 0 to 3, not 4"),
        (lambda: graphs.ring(0, 0), ValueError, "size must be an integer of at least 1"),
        (lambda: graphs.one_peer(0, 4, -1), ValueError, "step must be"),
        (lambda: graphs.ring(0.0, 4), TypeError, "rank must be an integer"),
        (lambda: graphs.random_pairs(-1), ValueError, "seed must be"),
        (lambda: graphs.random_regular(1), ValueError, "degree must be an integer of at least 2"),
        (lambda: graphs.from_networkx([[1], [0]]), TypeError, "a graph of networkx"),
        (lambda: graphs.from_networkx(neighbours_of([], [])), ValueError, "no nodes"),
        (lambda: graphs.from_networkx(ONE_WAY), ValueError, "the edge 0 - 1 has one direction"),
        (lambda: graphs.from_networkx(neighbours_of([0, 1], [(0, 1)]))(0, 3), ValueError, "2 nodes, but there are 3"),
    ],
)
def test_wrong_arguments_are_named(call, error, reason):
    with pytest.raises(error, match=reason):
        call()
