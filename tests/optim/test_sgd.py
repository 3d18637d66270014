"""DistributedSGD against a plain reference in float64, over ranks, topologies and partitions of the parameters."""

from __future__ import annotations

import numpy as np
import pytest
from calls import every_rank

import pycollective as pc
from pycollective.optim import DistributedSGD, partition
from pycollective.schedule.language import registry

RANKS = [1, 2, 3, 4]
SHAPES = {"w": (5, 3), "b": (3,), "scalar": (), "none": (0, 4), "long": (1000,)}
SETTINGS = {
    "plain": {},
    "decay": {"weight_decay": 0.01},
    "momentum": {"momentum": 0.9},
    "both": {"momentum": 0.9, "weight_decay": 0.01},
    "nesterov": {"momentum": 0.8, "weight_decay": 0.01, "nesterov": True},
}


def arrays(*seed, shapes=SHAPES, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.normal(size=shape), dtype) for name, shape in shapes.items()}


def same(got, want):
    assert list(got) == list(want)
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name, strict=True)


def reference(n, steps, lr=0.1, momentum=0.0, weight_decay=0.0, nesterov=False):
    """The algorithm of torch.optim.SGD's page, with the mean over the ranks summed in rank order."""
    theta, b = arrays(0), {}
    for t in range(steps):
        parts = [arrays(1, t, r) for r in range(n)]
        for name in theta:
            g = sum(part[name] for part in parts) / n
            g = g + weight_decay * theta[name]
            if momentum:
                b[name] = momentum * b[name] + g if t else g
                g = g + momentum * b[name] if nesterov else b[name]
            theta[name] = theta[name] - lr * g
    return theta


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_steps_equal_the_reference_bit_for_bit(n, setting):
    def train(comm):
        params = arrays(0)
        sgd = DistributedSGD(params, 0.1, comm=comm, **SETTINGS[setting])
        for t in range(4):
            sgd.step(arrays(1, t, comm.rank))
        return params

    want = reference(n, 4, **SETTINGS[setting])
    for params in pc.local_world(n).run(train):
        same(params, want)


@pytest.mark.torch
@pytest.mark.parametrize("setting", SETTINGS)
def test_steps_are_those_of_torch(setting):
    torch = pytest.importorskip("torch")
    theta = {name: torch.tensor(value) for name, value in arrays(0).items()}
    optimizer = torch.optim.SGD(theta.values(), lr=0.1, **SETTINGS[setting])
    for t in range(4):
        for name, gradient in arrays(1, t, 0).items():
            theta[name].grad = torch.tensor(gradient)
        optimizer.step()
    for name, value in reference(1, 4, **SETTINGS[setting]).items():
        np.testing.assert_allclose(theta[name].numpy(), value, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("n", RANKS)
def test_ranks_with_shares_do_what_one_rank_does_with_all_rows(n):
    rng = np.random.default_rng(3)
    x, truth = rng.normal(size=(48, 6)), rng.normal(size=6)
    y = x @ truth

    def fit(comm):
        params = [np.zeros(6)]
        sgd = DistributedSGD(params, 0.05, 0.9, comm=comm)
        for epoch in range(100):
            rows = partition(len(x), comm, seed=0, epoch=epoch)
            for batch in np.split(rows, 2):
                sgd.step([2 * x[batch].T @ (x[batch] @ params[0] - y[batch]) / len(batch)])
        return params[0]

    (alone,) = pc.local_world(1).run(fit)
    np.testing.assert_allclose(alone, truth, atol=1e-2)
    for together in pc.local_world(n).run(fit):
        np.testing.assert_allclose(together, alone, rtol=1e-12)


@pytest.mark.parametrize("count", [100, 30_000])  # staged and small variants; zero-copy and large ones
def test_every_topology_gives_all_ranks_the_same_and_rank_order_gives_the_same_bits(count):
    shapes = {"w": (count // 10, 7), "b": (3 * count // 10,)}

    def train(comm, topology):
        params = arrays(0, shapes=shapes, dtype=np.float32)
        sgd = DistributedSGD(params, 0.1, 0.9, comm=comm, topology=topology)
        for t in range(2):
            sgd.step(arrays(1, t, comm.rank, shapes=shapes, dtype=np.float32))
        return params

    def with_topology(name):
        ranks = pc.local_world(4).run(lambda comm: train(comm, name))
        for params in ranks:
            same(params, ranks[0])
        return ranks[0]

    direct = with_topology(None)
    orders = {row.name: row.order for row in registry.describe()}
    assert {"direct", "star", "ring", "tree", "wheel", "halving_doubling"} <= orders.keys()
    for name, order in orders.items():
        params = with_topology(name)
        if order == "rank":
            same(params, direct)
        for key, value in params.items():
            np.testing.assert_allclose(value, direct[key], rtol=1e-4, atol=1e-5)


def test_the_cutting_into_arrays_changes_no_bits():
    flat = [np.random.default_rng(r).normal(size=5000).astype(np.float32) for r in range(3)]

    def train(comm, cuts):
        mine = np.split(flat[comm.rank], cuts)
        params = [np.zeros_like(part) for part in mine]
        DistributedSGD(params, 1.0, comm=comm).step(mine)
        return np.concatenate(params)

    def unfused(comm):
        return -np.concatenate([comm.allreduce(x, op="avg") for x in np.split(flat[comm.rank], 50)])

    (want, *_) = pc.local_world(3).run(unfused)
    for cuts in ([], [1], [7, 8, 1033, 4999], list(range(100, 5000, 100))):
        for got in pc.local_world(3).run(lambda comm, cuts=cuts: train(comm, cuts)):
            np.testing.assert_array_equal(got, want)


class Watched:
    """A communicator that records its allreduces."""

    def __init__(self, comm):
        self.comm, self.calls = comm, []

    def __getattr__(self, name):
        return getattr(self.comm, name)

    def allreduce(self, x, out=None, **options):
        self.calls.append((x.dtype.name, x.shape, out is x, options["op"]))
        return self.comm.allreduce(x, out=out, **options)


def test_one_allreduce_in_place_for_each_dtype():
    def train(comm):
        watched = Watched(comm)
        params = {
            "a": np.zeros((3, 2), np.float32),
            "b": np.zeros(5),
            "c": np.zeros((), np.float32),
            "d": np.zeros((2, 1)),
        }
        sgd = DistributedSGD(params, 1.0, comm=watched)
        sgd.step({name: np.full(p.shape, comm.rank + i, p.dtype) for i, (name, p) in enumerate(params.items())})
        return watched.calls, [float(-p.max()) for p in params.values()]

    for calls, steps in pc.local_world(2).run(train):
        assert calls == [("float32", (7,), True, "avg"), ("float64", (7,), True, "avg")]
        assert steps == [0.5, 1.5, 2.5, 3.5]


def test_gradients_may_be_written_straight_into_the_window():
    def train(comm):
        params = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        sgd = DistributedSGD(params, 1.0, comm=comm)
        assert list(sgd.gradients) == list(SHAPES)
        for name, gradient in arrays(1, comm.rank).items():
            sgd.gradients[name][...] = gradient
        sgd.step()
        averaged = {name: -g for name, g in sgd.gradients.items()}
        sgd.zero_grad()
        assert not any(g.any() for g in sgd.gradients.values())
        same(params, averaged)
        return params

    want = {name: -(g + arrays(1, 1)[name]) / 2 for name, g in arrays(1, 0).items()}
    for params in pc.local_world(2).run(train):
        same(params, want)


def test_gradients_added_up_between_steps():
    def train(comm):
        params = [np.zeros(3)]
        sgd = DistributedSGD(params, 1.0, comm=comm)
        for _ in range(2):
            sgd.zero_grad()
            for part in range(3):
                sgd.gradients[0] += part + comm.rank
            sgd.step()
        return params[0][0]

    assert pc.local_world(2).run(train) == [-9.0, -9.0]


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("root", [0, -1])
def test_broadcast_overwrites_the_arrays_in_place(n, root):
    def start(comm):
        params = arrays(comm.rank)
        params["transposed"] = np.full((4, 2), comm.rank, np.float32).T
        params["every other"] = np.full(10, float(comm.rank))[::2]
        before = dict(params)
        DistributedSGD(params, 0.1, comm=comm).broadcast_parameters(root % n)
        assert all(params[name] is before[name] for name in before)
        return params

    for params in pc.local_world(n).run(start):
        want = arrays(root % n)
        want["transposed"] = np.full((2, 4), root % n, np.float32)
        want["every other"] = np.full(5, float(root % n))
        same(params, want)


def test_optimizer_state_is_broadcast_with_and_without_velocity():
    def adopt(comm):
        params = [np.zeros(3)]
        sgd = DistributedSGD(params, 0.1 + comm.rank, momentum=0.5 * comm.rank, comm=comm)
        sgd.step([np.ones(3)])  # rank 1 has a velocity now, rank 0 none
        sgd.broadcast_optimizer_state(1)
        from_one = sgd.state_dict()
        sgd.lr, sgd.momentum = comm.rank, 0.0
        if comm.rank == 0:
            sgd.load_state_dict({**sgd.state_dict(), "velocity": None})
        sgd.broadcast_optimizer_state()
        return from_one, sgd.state_dict()

    for from_one, from_zero in pc.local_world(2).run(adopt):
        assert from_one["velocity"][0].tolist() == [1, 1, 1]
        del from_one["velocity"]
        assert from_one == {"lr": 1.1, "momentum": 0.5, "weight_decay": 0.0, "nesterov": False}
        assert from_zero == {"lr": 0.0, "momentum": 0.0, "weight_decay": 0.0, "nesterov": False, "velocity": None}


@every_rank(1)
def test_state_dict_continues_where_it_was_taken(comm):
    params = arrays(0)
    sgd = DistributedSGD(params, 0.1, momentum=0.9, weight_decay=0.01, comm=comm)
    sgd.step(arrays(1, 0, 0))
    state, copies = sgd.state_dict(), {name: p.copy() for name, p in params.items()}
    sgd.step(arrays(1, 1, 0))  # must not affect the copies
    again = DistributedSGD(copies, 5.0, comm=comm)
    again.load_state_dict(state)
    again.step(arrays(1, 1, 0))
    same(copies, params)
    assert state["velocity"].keys() == params.keys()


@every_rank(1)
def test_a_state_that_does_not_fit_changes_nothing(comm):
    sgd = DistributedSGD([np.zeros(3)], 0.1, momentum=0.9, comm=comm)
    good = sgd.state_dict()
    for wrong in (
        {"velocity": [np.zeros(4)]},
        {"velocity": []},
        {"lr": -1.0},
        {"velocity": [np.zeros(3)], "lr": -1.0},
    ):
        with pytest.raises(ValueError):
            sgd.load_state_dict({**good, "lr": 7.0, **wrong})
        assert sgd.state_dict() == good
    with pytest.raises(KeyError, match="lr"):
        sgd.load_state_dict({"velocity": None})


def test_numbers_of_numpy_do_not_widen_the_parameters():
    def train(comm, number):
        params = arrays(0, dtype=np.float32)
        sgd = DistributedSGD(params, number(0.1), number(0.9), number(0.01), comm=comm)
        for t in range(3):
            sgd.step(arrays(1, t, dtype=np.float32))
        return params

    (want,) = pc.local_world(1).run(lambda comm: train(comm, float))
    (got,) = pc.local_world(1).run(lambda comm: train(comm, np.float64))
    same(got, want)


def frozen():
    array = np.zeros(3)
    array.flags.writeable = False
    return array


SHARED = np.zeros(3)


@pytest.mark.parametrize(
    ("params", "options", "error", "message"),
    [
        ([np.zeros(3)], {"lr": -0.1}, ValueError, "lr must be a number, at least 0"),
        ([np.zeros(3)], {"lr": float("nan")}, ValueError, "lr must be a number, at least 0"),
        ([np.zeros(3)], {"momentum": -1}, ValueError, "momentum must be"),
        ([np.zeros(3)], {"weight_decay": -1}, ValueError, "weight_decay must be"),
        ([np.zeros(3)], {"nesterov": True}, ValueError, "needs momentum"),
        ([np.zeros(3)], {"topology": "rimg"}, pc.TopologyError, "did you mean ring"),
        ([SHARED, SHARED], {}, ValueError, "two parameters"),
        ([np.zeros(3, np.int64)], {}, TypeError, "'0' has dtype int64"),
        ([np.zeros(3, np.complex128)], {}, TypeError, "complex128"),
        ([1.0], {}, TypeError, "float is not an array"),
        ({"w": frozen()}, {}, TypeError, "'w' cannot be written"),
        ({"w": np.float64(1)}, {}, TypeError, "'w' cannot be written"),
        (np.zeros(3), {}, TypeError, "a dict or a list"),
        ({1: np.zeros(3)}, {}, TypeError, "must be strings"),
    ],
)
@every_rank(1)
def test_arguments_that_cannot_work_are_refused(comm, params, options, error, message):
    with pytest.raises(error, match=message):
        DistributedSGD(params, **{"lr": 0.1, **options}, comm=comm)


@pytest.mark.parametrize(
    ("grads", "error", "message"),
    [
        ({"w": np.zeros((2, 2))}, ValueError, "'b'"),
        ({"w": np.zeros((2, 2)), "b": np.zeros(2), "c": np.zeros(2)}, ValueError, "'c'"),
        ({"w": np.zeros((2, 2)), "b": np.zeros(1)}, ValueError, r"'b' has shape \(1,\), its parameter \(2,\)"),
        ({"w": np.zeros((2, 2)), "b": np.zeros(2, np.float32)}, TypeError, "'b' has dtype float32"),
        ({"w": np.zeros((2, 2)), "b": None}, TypeError, "'b' is not an array but NoneType"),
        ([np.zeros((2, 2)), np.zeros(2)], ValueError, "names"),
    ],
)
@every_rank(1)
def test_gradients_that_do_not_fit_are_refused_before_anything_is_sent(comm, grads, error, message):
    watched = Watched(comm)
    params = {"w": np.ones((2, 2)), "b": np.ones(2)}
    sgd = DistributedSGD(params, 0.1, comm=watched)
    sgd.zero_grad()
    with pytest.raises(error, match=message):
        sgd.step(grads)
    assert not watched.calls and not any(g.any() for g in sgd.gradients.values())
    same(params, {"w": np.ones((2, 2)), "b": np.ones(2)})


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ({"b": np.zeros(2), "a": np.zeros(2)}, "rank 0 has 'a' of shape .*, rank 1 has 'b' of shape"),
        ({"a": np.zeros(3), "b": np.zeros(1)}, r"\(2,\), float64, rank 1 has 'a' of shape \(3,\), float64"),
        ({"a": np.zeros(2), "b": np.zeros(2, np.float32)}, "rank 1 has 'b' of shape .*, float32"),
        ({"a": np.zeros(2)}, "rank 0 has 'b' .*, rank 1 has nothing"),
        ({"a": np.zeros(2), "b": np.zeros(2), "c": np.zeros(2)}, "rank 0 has nothing, rank 1 has 'c'"),
    ],
)
def test_parameters_that_differ_between_ranks_are_named_on_every_rank(odd, message):
    def start(comm):
        params = odd if comm.rank == 1 else {"a": np.zeros(2), "b": np.zeros(2)}
        with pytest.raises(pc.MismatchError, match=message):
            DistributedSGD(params, 0.1, comm=comm)
        return comm.rank

    assert pc.local_world(3).run(start) == [0, 1, 2]


def test_without_a_communicator_the_default_one_is_meant():
    assert not pc.is_initialized()
    with pytest.raises(pc.CommunicatorError, match="init"):
        DistributedSGD([np.zeros(3)], 0.1)
