"""DistributedSGD against a plain reference in float64, over ranks, topologies and partitions of the parameters."""

from __future__ import annotations

import numpy as np
import pytest
from calls import on_each_rank

import pycollective as pc
from pycollective.optim import DistributedSGD

RANKS = [1, 2, 3, 4]
SHAPES = {"w": (5, 3), "b": (3,), "scalar": (), "none": (0, 4), "long": (1000,)}
SETTINGS = {
    "plain": {},
    "decay": {"weight_decay": 0.01},
    "momentum": {"momentum": 0.9},
    "both": {"momentum": 0.9, "weight_decay": 0.01},
    "nesterov": {"momentum": 0.8, "weight_decay": 0.01, "nesterov": True},
}


def arrays(*seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.normal(size=shape), dtype) for name, shape in SHAPES.items()}


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
@on_each_rank()
def test_steps_equal_the_reference_bit_for_bit(comm, setting):
    params = arrays(0)
    sgd = DistributedSGD(params, 0.1, comm=comm, **SETTINGS[setting])
    for t in range(4):
        sgd.step(arrays(1, t, comm.rank))
    same(params, reference(comm.size, 4, **SETTINGS[setting]))


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


@on_each_rank(3)
def test_the_cutting_into_arrays_changes_no_bits(comm):
    flat = np.random.default_rng(comm.rank).normal(size=5000).astype(np.float32)
    want = -np.concatenate([comm.allreduce(x, op="avg") for x in np.split(flat, 50)])
    for cuts in ([], [1], [7, 8, 1033, 4999], list(range(100, 5000, 100))):
        mine = np.split(flat, cuts)
        params = [np.zeros_like(part) for part in mine]
        DistributedSGD(params, 1.0, comm=comm).step(mine)
        np.testing.assert_array_equal(np.concatenate(params), want)


class Watched:
    """A communicator that records its allreduces."""

    def __init__(self, comm):
        self.comm, self.calls = comm, []

    def __getattr__(self, name):
        return getattr(self.comm, name)

    def allreduce(self, x, out=None, **options):
        self.calls.append((x.dtype.name, x.shape, out is x, options))
        return self.comm.allreduce(x, out=out, **options)


@on_each_rank(2)
def test_one_allreduce_in_place_for_each_dtype(comm):
    watched = Watched(comm)
    single, double = np.float32, np.float64
    shapes = {"a": ((3, 2), single), "b": (5, double), "c": ((), single), "d": ((2, 1), double)}
    params = {name: np.zeros(*shape) for name, shape in shapes.items()}
    sgd = DistributedSGD(params, 1.0, comm=watched, topology="ring")
    sgd.step({name: np.full(p.shape, comm.rank + i, p.dtype) for i, (name, p) in enumerate(params.items())})
    options = {"op": "avg", "topology": "ring"}
    assert watched.calls == [("float32", (7,), True, options), ("float64", (7,), True, options)]
    assert [float(-p.max()) for p in params.values()] == [0.5, 1.5, 2.5, 3.5]


@on_each_rank(2)
def test_gradients_may_be_written_straight_into_the_window(comm):
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
    same(params, {name: -(g + arrays(1, 1)[name]) / 2 for name, g in arrays(1, 0).items()})


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("root", [0, -1])
@on_each_rank()
def test_broadcast_overwrites_the_arrays_in_place(comm, root):
    def started(rank):
        transposed, every_other = np.full((4, 2), rank, np.float32).T, np.full(10, float(rank))[::2]
        return {**arrays(rank), "transposed": transposed, "every other": every_other}

    params = started(comm.rank)
    before = dict(params)
    DistributedSGD(params, 0.1, comm=comm).broadcast_parameters(root % comm.size)
    assert all(params[name] is before[name] for name in before)
    same(params, started(root % comm.size))


@on_each_rank(2)
def test_optimizer_state_is_broadcast_with_and_without_velocity(comm):
    sgd = DistributedSGD([np.zeros(3)], 0.1 + comm.rank, momentum=0.5 * comm.rank, comm=comm)
    sgd.step([np.ones(3)])  # rank 1 has a velocity now, rank 0 none
    sgd.broadcast_optimizer_state(1)
    from_one = sgd.state_dict()
    assert from_one.pop("velocity")[0].tolist() == [1, 1, 1]
    assert from_one == {"lr": 1.1, "momentum": 0.5, "weight_decay": 0.0, "nesterov": False}
    sgd.lr, sgd.momentum = comm.rank, 0.0
    if comm.rank == 0:
        sgd.load_state_dict({**sgd.state_dict(), "velocity": None})
    sgd.broadcast_optimizer_state()
    assert sgd.state_dict() == {**from_one, "lr": 0.0, "momentum": 0.0, "velocity": None}


@on_each_rank(1)
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


@on_each_rank(1)
def test_a_state_that_does_not_fit_changes_nothing(comm):
    sgd = DistributedSGD([np.zeros(3)], 0.1, momentum=0.9, comm=comm)
    good = sgd.state_dict()
    velocity = [np.zeros(3)]
    for wrong in ({"velocity": [np.zeros(4)]}, {"velocity": []}, {"lr": -1.0}, {"velocity": velocity, "lr": -1.0}):
        with pytest.raises(ValueError):
            sgd.load_state_dict({**good, "lr": 7.0, **wrong})
        assert sgd.state_dict() == good
    with pytest.raises(KeyError, match="lr"):
        sgd.load_state_dict({"velocity": None})


@on_each_rank(1)
def test_numbers_of_numpy_do_not_widen_the_parameters(comm):
    def train(number):
        params = arrays(0, dtype=np.float32)
        sgd = DistributedSGD(params, number(0.1), number(0.9), number(0.01), comm=comm)
        for t in range(3):
            sgd.step(arrays(1, t, dtype=np.float32))
        return params

    same(train(np.float64), train(float))


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
        ({"w": np.frombuffer(bytes(24))}, {}, TypeError, "'w' cannot be written"),
        ({"w": np.float64(1)}, {}, TypeError, "'w' cannot be written"),
        (np.zeros(3), {}, TypeError, "a dict or a list"),
        ({1: np.zeros(3)}, {}, TypeError, "must be strings"),
    ],
)
@on_each_rank(1)
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
@on_each_rank(1)
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
@on_each_rank(3)
def test_parameters_that_differ_between_ranks_are_named_on_every_rank(comm, odd, message):
    params = odd if comm.rank == 1 else {"a": np.zeros(2), "b": np.zeros(2)}
    with pytest.raises(pc.MismatchError, match=message):
        DistributedSGD(params, 0.1, comm=comm)


def test_without_a_communicator_the_default_one_is_meant():
    assert not pc.is_initialized()
    with pytest.raises(pc.CommunicatorError, match="init"):
        DistributedSGD([np.zeros(3)], 0.1)
