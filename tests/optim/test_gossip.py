"""GossipSGD against a plain reference with matrices, over graphs, orders and numbers of ranks."""

from __future__ import annotations

import numpy as np
import pytest

import pycollective as pc
from pycollective import graphs
from pycollective.optim import DistributedSGD, GossipSGD, consensus_distance, load_checkpoint, save_checkpoint

SHAPES = {"w": (5, 3), "b": (3,), "scalar": (), "none": (0, 4)}
SETTINGS = {
    "plain": {},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01},
    "nesterov": {"momentum": 0.8, "nesterov": True},
    "averaged": {"average_every": 2},
}


def arrays(*seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.normal(size=shape), dtype) for name, shape in SHAPES.items()}


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
def test_steps_are_those_of_the_formula(n, setting, order):
    graph = graphs.one_peer

    def train(comm):
        params = arrays(0, comm.rank)
        sgd = GossipSGD(params, graph, 0.1, comm=comm, order=order, **SETTINGS[setting])
        for t in range(5):
            sgd.step(arrays(1, t, comm.rank))
        return flat(params)

    want = reference(graph, n, 5, order, **SETTINGS[setting])
    np.testing.assert_allclose(pc.local_world(n).run(train), want, rtol=1e-12, atol=1e-13)


def test_on_the_complete_graph_it_follows_sgd_on_averaged_gradients():
    def train(comm):
        mine, all_ = arrays(0), arrays(0)
        gossip = GossipSGD(mine, graphs.complete, 0.1, 0.9, comm=comm, order="adapt_then_combine")
        sgd = DistributedSGD(all_, 0.1, 0.9, comm=comm)
        for t in range(5):
            gossip.step(arrays(1, t, comm.rank))
            sgd.step(arrays(1, t, comm.rank))
        return flat(mine), flat(all_)

    for mine, averaged in pc.local_world(4).run(train):
        np.testing.assert_allclose(mine, averaged, rtol=1e-12)


def test_several_dtypes_gradients_in_place_and_the_mean_at_the_end():
    def train(comm):
        params = [np.full(3, comm.rank, np.float64), np.full((2, 2), comm.rank, np.float32)]
        sgd = GossipSGD(params, graphs.ring, 0.5, comm=comm)
        for gradient in sgd.gradients:
            gradient[...] = 1.0
        sgd.step()
        kept = [gradient.copy() for gradient in sgd.gradients]
        before = [p.copy() for p in params]
        sgd.average_parameters()
        sgd.zero_grad()
        return before, kept, params, consensus_distance(comm, params), sgd.gradients

    ring = graphs.ring.matrix(4) @ np.arange(4.0) - 0.5
    for rank, (before, kept, params, distance, zeroed) in enumerate(pc.local_world(4).run(train)):
        assert [p.dtype for p in before] == [np.float64, np.float32]
        for p, gradient, mean, zero in zip(before, kept, params, zeroed, strict=True):
            np.testing.assert_allclose(p, ring[rank], rtol=1e-6)
            assert (gradient == 1).all()
            np.testing.assert_allclose(mean, 1.0, rtol=1e-6)
            assert (zero == 0).all()
        assert distance == 0


def lopsided(rank, size, step):
    """Rows sum to 1, but rank 0 is read more than the others."""
    return {0: 1.0} if rank == 0 else {0: 0.25, rank: 0.75}


def outside(rank, size, step):
    return {rank: 0.5, size: 0.5}


def invalid(rank, size, step):
    return {rank: float("nan")}


@pytest.mark.parametrize(
    "graph, error, reason",
    [
        (lopsided, ValueError, r"column 0 of the graph sums to 1\.5 in step 0"),
        (outside, ValueError, "graph outside: rank 0 of 3: source 3 is not a rank"),
        (invalid, ValueError, "the weight of rank 0 is nan"),
        ({0: 1.0}, TypeError, "graph must be a function"),
        (lambda rank, size, step: None, TypeError, "{source: weight} is needed, not None"),
    ],
)
def test_graphs_that_would_move_the_mean_are_refused_on_every_rank(graph, error, reason):
    def body(comm):
        with pytest.raises(error, match=reason):
            GossipSGD([np.zeros(3)], graph, 0.1, comm=comm)
        return comm.allreduce(np.ones(1))[0]

    assert pc.local_world(3).run(body) == [3, 3, 3]


def test_a_column_that_is_wrong_in_a_later_step_is_refused_before_anything_changes():
    def graph(rank, size, step):
        return lopsided(rank, size, step) if step == 1 else graphs.ring(rank, size, step)

    def body(comm):
        params = [np.full(3, comm.rank, np.float64)]
        sgd = GossipSGD(params, graph, 0.1, comm=comm, order="adapt_then_combine")
        sgd.step([np.ones(3)])
        before = params[0].copy()
        with pytest.raises(ValueError, match=r"column 0 .* in step 1"):
            sgd.step([np.ones(3)])
        with pytest.raises(ValueError, match="shape"):
            sgd.step([np.ones(4)])
        return np.array_equal(params[0], before), sgd.steps

    assert pc.local_world(3).run(body) == [(True, 1)] * 3


def test_the_order_and_the_interval_are_checked():
    (comm,) = pc.local_world(1).run(lambda comm: comm)
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


@pytest.mark.parametrize("graph", [graphs.ring, graphs.one_peer, graphs.random_pairs(0)], ids=repr)
def test_on_digits_the_averaged_model_is_as_accurate_as_the_all_reduced_one(graph):
    """One seed and few epochs; examples/course/gossip.py measures five seeds."""
    gossip, reduced = accuracy(graph), accuracy(None)
    assert reduced > 0.9
    assert gossip >= reduced - 0.015


def accuracy(graph, ranks=8, epochs=12):
    """Loss of softmax regression, on rows that were not trained on."""
    datasets = pytest.importorskip("sklearn.datasets")
    x, y = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order] / 16.0, np.eye(10)[y[order]]
    train = 1440

    def body(comm):
        params = {"w": np.zeros((64, 10)), "b": np.zeros(10)}
        common = {"lr": 0.3, "momentum": 0.9, "comm": comm}
        sgd = GossipSGD(params, graph, **common) if graph else DistributedSGD(params, **common)
        mine = np.arange(comm.rank, train, comm.size)
        for epoch in range(epochs):
            for rows in np.split(np.random.default_rng((epoch, comm.rank)).permutation(mine), 12):
                scores = np.exp(x[rows] @ params["w"] + params["b"])
                error = (scores / scores.sum(1, keepdims=True) - y[rows]) / len(rows)
                sgd.step({"w": x[rows].T @ error, "b": error.sum(0)})
        if graph:
            sgd.average_parameters()
        return float(np.mean((x[train:] @ params["w"] + params["b"]).argmax(1) == y[train:].argmax(1)))

    found = pc.local_world(ranks).run(body)
    assert len(set(found)) == 1
    return found[0]
