"""GossipSGD against a plain reference with matrices, over graphs, orders and numbers of ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from calls import on_each_rank
from optim.test_sgd import arrays

import pycollective as pc
from pycollective import graphs
from pycollective.optim import GossipSGD, consensus_distance, load_checkpoint, save_checkpoint

SETTINGS = {
    "plain": {},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01},
    "nesterov": {"momentum": 0.8, "nesterov": True},
    "averaged": {"average_every": 2},
}


def flat(params):
    return np.concatenate([np.ravel(x) for x in params.values()])


def reference(graph, n, steps, order, lr=0.1, momentum=0.0, weight_decay=0.0, nesterov=False, average_every=None):
    x, v = np.stack([flat(arrays(0, r)) for r in range(n)]), 0.0
    for t in range(steps):
        matrix = np.full((n, n), 1 / n) if average_every and (t + 1) % average_every == 0 else graph.matrix(n, t)
        if order == "combine_then_adapt":
            x = matrix @ x
        g = np.stack([flat(arrays(1, t, r)) for r in range(n)]) + weight_decay * x
        v = momentum * v + g
        x = x - lr * (g + momentum * v if nesterov else v)
        if order == "adapt_then_combine":
            x = matrix @ x
    return x


@pytest.mark.parametrize("order", ["combine_then_adapt", "adapt_then_combine"])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("n", [1, 2, 5])
@on_each_rank()
def test_steps_are_those_of_the_formula(comm, setting, order):
    graph, params = graphs.one_peer, arrays(0, comm.rank)
    sgd = GossipSGD(params, graph, 0.1, comm=comm, order=order, **SETTINGS[setting])
    for t in range(5):
        sgd.step(arrays(1, t, comm.rank))
    want = reference(graph, comm.size, 5, order, **SETTINGS[setting])
    np.testing.assert_allclose(flat(params), want[comm.rank], rtol=1e-12, atol=1e-13)


@on_each_rank(3)
def test_the_consensus_distance_is_that_of_the_definition(comm):
    x = np.random.default_rng(3).normal(size=(3, 10))
    params = {"a": x[comm.rank, :4].reshape(2, 2), "b": x[comm.rank, 4:].astype(np.float32), "c": np.zeros((0, 2))}
    found = consensus_distance(comm, params)
    rounded = np.concatenate([x[:, :4], x[:, 4:].astype(np.float32)], axis=1)
    expected = math.sqrt(np.mean([np.sum((row - rounded.mean(0)) ** 2) for row in rounded]))
    assert found == pytest.approx(expected, rel=1e-14)
    assert comm.allgather_object(found) == [found] * 3
    assert consensus_distance(comm, [np.ones(3)]) == 0


@on_each_rank(4)
def test_several_dtypes_gradients_in_place_and_the_mean_at_the_end(comm):
    params = [np.full(3, comm.rank, np.float64), np.full((2, 2), comm.rank, np.float32)]
    sgd = GossipSGD(params, graphs.ring, 0.5, comm=comm)
    for gradient in sgd.gradients:
        gradient[...] = 1.0
    sgd.step()
    assert [p.dtype for p in params] == [np.float64, np.float32]
    ring = graphs.ring.matrix(4) @ np.arange(4.0) - 0.5
    for p, gradient in zip(params, sgd.gradients, strict=True):
        np.testing.assert_allclose(p, ring[comm.rank], rtol=1e-6)
        assert (gradient == 1).all()
    sgd.average_parameters()
    for p in params:
        np.testing.assert_allclose(p, 1.0, rtol=1e-6)
    assert consensus_distance(comm, params) == 0
    sgd.zero_grad()
    assert not any(gradient.any() for gradient in sgd.gradients)


def lopsided(rank, size, step):
    """Rows sum to 1, but rank 0 is read more than the others."""
    return {0: 1.0} if rank == 0 else {0: 0.25, rank: 0.75}


def outside(rank, size, step):
    return {rank: 0.5, size: 0.5}


@pytest.mark.parametrize(
    "graph, error, reason",
    [
        (lopsided, ValueError, r"column 0 of the graph sums to 1\.5 in step 0"),
        (outside, ValueError, "graph outside: rank 0 of 3: source 3 is not a rank"),
        (lambda rank, size, step: {rank: math.nan}, ValueError, "the weight of rank 0 is nan"),
        ({0: 1.0}, TypeError, "graph must be a function"),
        (lambda rank, size, step: None, TypeError, "{source: weight} is needed, not None"),
    ],
)
@on_each_rank(3)
def test_graphs_that_would_move_the_mean_are_refused_on_every_rank(comm, graph, error, reason):
    with pytest.raises(error, match=reason):
        GossipSGD([np.zeros(3)], graph, 0.1, comm=comm)
    assert comm.allreduce(np.ones(1)) == 3


@on_each_rank(3)
def test_a_column_that_is_wrong_in_a_later_step_is_refused_before_anything_changes(comm):
    def graph(rank, size, step):
        return lopsided(rank, size, step) if step == 1 else graphs.ring(rank, size, step)

    params = [np.full(3, comm.rank, np.float64)]
    sgd = GossipSGD(params, graph, 0.1, comm=comm, order="adapt_then_combine")
    sgd.step([np.ones(3)])
    before = params[0].copy()
    with pytest.raises(ValueError, match=r"column 0 .* in step 1"):
        sgd.step([np.ones(3)])
    with pytest.raises(ValueError, match="shape"):
        sgd.step([np.ones(4)])
    assert np.array_equal(params[0], before) and sgd.steps == 1


@on_each_rank(1)
def test_the_order_and_the_interval_are_checked(comm):
    with pytest.raises(ValueError, match="order must be one of combine_then_adapt, adapt_then_combine"):
        GossipSGD([np.zeros(1)], graphs.ring, 0.1, comm=comm, order="both")
    with pytest.raises(ValueError, match="average_every must be"):
        GossipSGD([np.zeros(1)], graphs.ring, 0.1, comm=comm, average_every=0)


def test_a_checkpoint_continues_with_the_same_step_of_the_graph(tmp_path):
    path = tmp_path / "state.npz"

    def start(comm):
        params = arrays(0)
        return params, GossipSGD(params, graphs.random_pairs(1), 0.1, 0.9, comm=comm)

    def train(comm):
        params, sgd = start(comm)
        for t in range(6):
            if t == 3:
                sgd.average_parameters()
                save_checkpoint(path, sgd)
                load_checkpoint(path, sgd)  # rank 0's velocity on all
            sgd.step(arrays(1, t, comm.rank))
        return flat(params)

    def resume(comm):
        params, sgd = start(comm)
        load_checkpoint(path, sgd)
        assert sgd.steps == 3
        for t in range(3, 6):
            sgd.step(arrays(1, t, comm.rank))
        return flat(params)

    np.testing.assert_array_equal(pc.local_world(3).run(train), pc.local_world(3).run(resume))
