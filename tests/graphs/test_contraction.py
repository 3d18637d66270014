"""Mixing removes disagreement as fast as the mathematics predicts, and keeps the mean."""

from __future__ import annotations

import math

import numpy as np
import pytest
from calls import every_rank

import pycollective as pc
from pycollective import graphs
from pycollective.optim import GossipSGD, consensus_distance

FIXED = [graphs.ring, graphs.star, graphs.exponential, graphs.one_peer]
KEEPING = [*FIXED, graphs.random_pairs(3), graphs.random_regular(3, 3)]


def mixed(graph, x, steps):
    """What GossipSGD makes of row r of x on rank r, with zeros for gradients: the states after each step."""

    def body(comm):
        params = [x[comm.rank].copy()]
        sgd = GossipSGD(params, graph, lr=1.0, comm=comm)
        states = [params[0].copy()]
        for _ in range(steps):
            sgd.step([np.zeros_like(params[0])])
            states.append(params[0].copy())
        return states

    return np.stack(pc.local_world(len(x)).run(body), axis=1)  # step, rank, element


def disagreement(x):
    return np.linalg.norm(x - x.mean(0))


def test_on_a_ring_of_eight_the_disagreement_shrinks_by_0_8047_per_step():
    x = np.random.default_rng(0).normal(size=(8, 100))
    states = mixed(graphs.ring, x, 30)
    rate = (disagreement(states[30]) / disagreement(states[20])) ** 0.1
    assert rate == pytest.approx(0.8047, rel=0.01)
    assert graphs.ring.spectral_gap(8) == pytest.approx(1 - (1 + 2 * math.cos(2 * math.pi / 8)) / 3)


@pytest.mark.parametrize("n", [6, 7, 8])
def test_random_pairs_shrink_the_squared_disagreement_by_the_mean_factor(n):
    """200 independent matchings, a new x for each: within four standard errors."""
    graph = graphs.random_pairs(seed=11)
    before = np.random.default_rng(n).normal(size=(200, n, 1))

    def body(comm):
        return [comm.mix(x[comm.rank], graph, step) for step, x in enumerate(before)]

    after = np.stack(pc.local_world(n).run(body), axis=1)
    ratios = [(disagreement(y) / disagreement(x)) ** 2 for x, y in zip(before, after, strict=True)]
    error = np.std(ratios) / math.sqrt(len(ratios))
    expected = 0.5 if n % 2 else (n - 2) / (2 * (n - 1))
    assert error < 0.05
    assert abs(np.mean(ratios) - expected) < 4 * error


@pytest.mark.parametrize("n", [2, 4, 8])
def test_one_peer_gives_the_exact_mean_after_log2_n_steps(n):
    x = np.random.default_rng(n).normal(size=(n, 50))
    after = mixed(graphs.one_peer, x, n.bit_length() - 1)[-1]
    np.testing.assert_allclose(after, np.broadcast_to(x.mean(0), after.shape), rtol=0, atol=1e-15 * n)


@pytest.mark.parametrize("graph", KEEPING, ids=repr)
def test_the_mean_is_conserved(graph):
    x = np.random.default_rng(1).normal(size=(5, 200))
    states = mixed(graph, x, 40)
    assert np.abs(states.mean(1) - x.mean(0)).max() < 1e-12
    assert disagreement(states[-1]) < 0.5 * disagreement(x)


def test_the_same_bits_on_every_run():
    x = np.random.default_rng(2).normal(size=(4, 300)).astype(np.float32)
    first, second = (mixed(graphs.random_pairs(4), x, 10) for _ in range(2))
    assert first.dtype == np.float32
    assert first.tobytes() == second.tobytes()


@every_rank(3)
def test_the_consensus_distance_is_that_of_the_definition(comm):
    x = np.random.default_rng(3).normal(size=(3, 10))
    params = {"a": x[comm.rank, :4].reshape(2, 2), "b": x[comm.rank, 4:].astype(np.float32), "c": np.zeros((0, 2))}
    found = consensus_distance(comm, params)
    rounded = np.concatenate([x[:, :4], x[:, 4:].astype(np.float32)], axis=1)
    expected = math.sqrt(np.mean([np.sum((row - rounded.mean(0)) ** 2) for row in rounded]))
    assert found == pytest.approx(expected, rel=1e-14)
    assert comm.allgather_object(found) == [found] * 3
    assert consensus_distance(comm, [np.ones(3)]) == 0
