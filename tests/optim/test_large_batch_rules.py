"""The rules for large batches against transcriptions of their papers, and DistributedOptimizer over ranks."""

from __future__ import annotations

import json
import math

import ml_dtypes
import numpy as np
import pytest
from calls import on_each_rank

import pycollective as pc
from pycollective.optim import DistributedOptimizer, DistributedSGD, load_checkpoint, rules, save_checkpoint
from pycollective.optim.rules import lamb, larc, lars, novograd

SHAPES = {"w": (5, 3), "b": (3,), "scalar": (), "none": (0, 4)}
RULES = {
    "lars": (lars, {"momentum": 0.8, "weight_decay": 0.1, "trust_coefficient": 0.3}),
    "lars plain": (lars, {}),
    "larc clip": (larc, {"momentum": 0.8, "weight_decay": 0.1, "trust_coefficient": 0.1}),
    "larc scale": (larc, {"clip": False, "momentum": 0.5}),
    "lamb": (lamb, {"betas": (0.8, 0.9), "weight_decay": 0.1, "eps": 1e-3}),
    "lamb plain": (lamb, {}),
    "novograd": (novograd, {"betas": (0.8, 0.5), "weight_decay": 0.1, "eps": 1e-3}),
    "novograd plain": (novograd, {}),
}
EACH = pytest.mark.parametrize("name", RULES)


def arrays(*seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.normal(size=shape), dtype) for name, shape in SHAPES.items()}


def size(x):
    return math.sqrt(math.fsum(float(e) ** 2 for e in np.ravel(x)))


def lars_paper(w, grads, rate, momentum=0.9, weight_decay=0.0, trust_coefficient=0.001):
    """Algorithm 1, with the local rate of equation 6; a vector w of one layer."""
    v = np.zeros_like(w)
    for t, g in enumerate(grads):
        below = size(g) + weight_decay * size(w)
        local = trust_coefficient * size(w) / below if size(w) and below else 1.0
        v = momentum * v + rate(t) * local * (g + weight_decay * w)
        w = w - v
    return w


def larc_apex(w, grads, rate, momentum=0.9, weight_decay=0.0, trust_coefficient=0.02, clip=True, eps=1e-8):
    """LARC.step of Apex, then torch.optim.SGD.step."""
    v = np.zeros_like(w)
    for t, g in enumerate(grads):
        if size(w) != 0 and size(g) != 0:
            adaptive = trust_coefficient * size(w) / (size(g) + size(w) * weight_decay + eps)
            if clip:
                adaptive = min(adaptive / rate(t), 1)
            g = (g + weight_decay * w) * adaptive
        v = momentum * v + g
        w = w - rate(t) * v
    return w


def lamb_paper(w, grads, rate, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0):
    """Algorithm 2 with phi(x) = x."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(grads):
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        r = m / (1 - betas[0] ** (t + 1)) / (np.sqrt(v / (1 - betas[1] ** (t + 1))) + eps)
        x = r + weight_decay * w
        w = w - rate(t) * (size(w) / size(x) if size(w) and size(x) else 1.0) * x
    return w


def novograd_paper(w, grads, rate, betas=(0.95, 0.98), eps=1e-8, weight_decay=0.0):
    """Algorithm 1; eps in the first step, too."""
    for t, g in enumerate(grads):
        if t == 0:
            v = size(g) ** 2
            m = g / (math.sqrt(v) + eps) + weight_decay * w
        else:
            v = betas[1] * v + (1 - betas[1]) * size(g) ** 2
            m = betas[0] * m + (g / (math.sqrt(v) + eps) + weight_decay * w)
        w = w - rate(t) * m
    return w


PAPERS = {lars: lars_paper, larc: larc_apex, lamb: lamb_paper, novograd: novograd_paper}


def rate(t):
    return 0.3 / (t + 1)


def train(comm, rule, options, steps=5, dtype=np.float64, batches=None):
    """Steps of one rank on its own gradients, or on the mean of several batches; the rate changes each step."""
    params = arrays(0, dtype=dtype)
    optimizer = DistributedOptimizer(params, rule, lr=1.0, comm=comm, **options)
    for t in range(steps):
        optimizer.lr = rate(t)
        seeds = batches or [comm.rank]
        parts = [arrays(1, t, seed, dtype=dtype) for seed in seeds]
        optimizer.step({name: np.asarray(sum(part[name] for part in parts) / len(parts), dtype) for name in params})
    return params


@EACH
@on_each_rank(1)
def test_rules_are_those_of_the_papers(comm, name):
    rule, options = RULES[name]
    params = train(comm, rule, options)
    start, grads = arrays(0), [arrays(1, t, 0) for t in range(5)]
    for key, p in params.items():
        want = PAPERS[rule](start[key], [g[key] for g in grads], rate, **options)
        np.testing.assert_allclose(p, want, rtol=1e-12, atol=1e-14)
        assert p.size == 0 or not np.allclose(p, start[key], rtol=1e-6), "nothing moves"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@EACH
@on_each_rank(1)
def test_short_types_are_computed_in_float32(comm, name, dtype):
    """Squares of these gradients overflow float16, and only the rounding of the parameters is lost."""
    rule, options = RULES[name]
    p = {"w": np.asarray([3.0, -4.0, 0.5] * 50, dtype)}
    g = {"w": np.asarray([300.0, 1e-4, -200.0] * 50, dtype)}

    want = PAPERS[rule](p["w"].astype(float), [g["w"].astype(float)], lambda t: 0.1, **options)
    optimizer = DistributedOptimizer(p, rule, lr=0.1, comm=comm, **options)
    optimizer.step(g)
    state = optimizer.state_dict()["state"]["w"]
    assert p["w"].dtype == dtype
    np.testing.assert_array_equal(p["w"], want.astype(np.float32).astype(dtype))
    assert all(value.dtype == np.float32 for slot, value in state.items() if slot != "step")


@EACH
def test_ranks_do_what_one_does_with_the_mean_of_their_gradients(name):
    rule, options = RULES[name]
    (alone,) = pc.local_world(1).run(lambda comm: train(comm, rule, options, batches=range(3)))
    together = pc.local_world(3).run(lambda comm: train(comm, rule, options))
    for params in together:
        for key, value in params.items():
            np.testing.assert_allclose(value, alone[key], rtol=1e-12)
            np.testing.assert_array_equal(value, together[0][key])


@EACH
@on_each_rank(2)
def test_other_libraries_give_the_bits_of_numpy(comm, name):
    xp = pytest.importorskip("array_api_strict")
    rule, options = RULES[name]

    def body(convert):
        params = {key: convert(value) for key, value in arrays(0).items()}
        optimizer = DistributedOptimizer(params, rule, lr=0.1, comm=comm, **options)
        for t in range(3):
            optimizer.step({key: convert(value) for key, value in arrays(1, t, comm.rank).items()})
            optimizer.broadcast_optimizer_state(1)
        return {key: np.from_dlpack(p).copy() for key, p in params.items()}

    ours, theirs = body(np.array), body(xp.asarray)
    for key in SHAPES:
        np.testing.assert_array_equal(theirs[key], ours[key], strict=True)


def once(rule, p, g, **options):
    p = np.asarray(p, float)
    rules.apply(rule, p, np.asarray(g, float), {}, rules.complete(rule, options))
    return p.tolist()


@pytest.mark.filterwarnings("error")
def test_zeros():
    for rule in PAPERS:
        assert once(rule, [1.0, 2.0], [3.0, 4.0], lr=0.0) == [1.0, 2.0]
        assert once(rule, [0.0, 0.0], [0.0, 0.0], lr=0.5) == [0.0, 0.0]
        assert once(rule, [1.0, 2.0], [0.0, 0.0], lr=0.5) == [1.0, 2.0]
        assert once(rule, np.zeros((0, 2)), np.zeros((0, 2)), lr=0.5) == []
    # Without weights for comparison the rate is lr.
    assert once(lars, [0.0, 0.0], [3.0, 4.0], lr=0.5) == [-1.5, -2.0]
    assert once(larc, [0.0, 0.0], [3.0, 4.0], lr=2.0) == [-6.0, -8.0]
    assert once(larc, [0.0, 0.0], [3.0, 4.0], lr=0.5, clip=False) == [-1.5, -2.0]
    assert once(lamb, [0.0, 0.0], [3.0, -4.0], lr=0.5, eps=0.0) == pytest.approx([-0.5, 0.5])
    # Decay alone: the local rate is trust_coefficient / weight_decay.
    assert once(lars, [1.0, 2.0], [0.0, 0.0], lr=0.5, weight_decay=0.1, trust_coefficient=0.2) == [0.9, 1.8]
    assert once(larc, [1.0, 2.0], [0.0, 0.0], lr=0.5, weight_decay=0.1, trust_coefficient=0.2) == [0.95, 1.9]
    # The first gradient may be zero.
    for rule in PAPERS:
        p, state = np.ones(2), {}
        for g in (np.zeros(2), np.ones(2)):
            rules.apply(rule, p, g, state, rules.complete(rule, {"lr": 0.01}))
        assert np.isfinite(p).all() and (p < 1).all()


@pytest.mark.parametrize("rule", [lars, larc])
@on_each_rank(1)
def test_without_adaptation_lars_and_larc_are_sgd(comm, rule):
    found, want = arrays(0), arrays(0)
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "comm": comm}
    for optimizer in (DistributedOptimizer(found, rule, adapt=False, **options), DistributedSGD(want, **options)):
        for t in range(3):
            optimizer.step(arrays(1, t))
    for key in want:
        np.testing.assert_allclose(found[key], want[key], rtol=1e-13)


@on_each_rank(1)
def test_overrides(comm):
    params = [np.ones(3), np.ones(3)]
    other = {"1": {"adapt": False, "weight_decay": 0.0}}
    optimizer = DistributedOptimizer(params, lars, lr=0.5, weight_decay=1.0, comm=comm, overrides=other)
    optimizer.step([np.ones(3), np.ones(3)])
    np.testing.assert_allclose(params[0], 1 - 0.5 * 0.001 / 2 * 2)
    np.testing.assert_allclose(params[1], 0.5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, TypeError, "lars needs lr"),
        ({"lr": -1.0}, ValueError, "lr must be a number, at least 0"),
        ({"rule": lamb, "lr": 0.1, "betas": (0.9, 1.0)}, ValueError, "betas"),
        ({"lr": 0.1, "beta": 0.1}, TypeError, "lars has no option beta, but lr, momentum"),
        ({"lr": 0.1, "overrides": {"b": {}}}, ValueError, "called b"),
        ({"lr": 0.1, "overrides": {"0": {"lr": -1}}}, ValueError, "lr must be a number, at least 0"),
        ({"lr": 0.1, "topology": "rimg"}, pc.TopologyError, "did you mean ring"),
    ],
)
@on_each_rank(1)
def test_options_that_cannot_work_are_refused(comm, options, error, message):
    with pytest.raises(error, match=message):
        DistributedOptimizer([np.ones(2)], **{"rule": lars, "comm": comm, **options})


def test_numbers_of_numpy_do_not_widen():
    p = np.ones(3, np.float32)
    rules.apply(lars, p, p, state := {}, rules.complete(lars, {"lr": np.float64(0.1), "momentum": np.float64(0.5)}))
    assert state["velocity"].dtype == np.float32


@EACH
@on_each_rank(2)
def test_resuming_from_a_state_or_a_checkpoint_changes_no_bits(comm, name, tmp_path):
    rule, options = RULES[name]
    params = arrays(0, comm.rank)
    optimizer = DistributedOptimizer(params, rule, lr=0.1, comm=comm, overrides={"b": {"lr": 0.2}}, **options)
    optimizer.broadcast_parameters()
    for t in range(2):
        optimizer.step(arrays(1, t, comm.rank))
    state, copies = optimizer.state_dict(), {key: p.copy() for key, p in params.items()}
    save_checkpoint(tmp_path / "state.npz", optimizer, epoch=3)
    optimizer.step(arrays(1, 2, comm.rank))
    resumed = DistributedOptimizer(copies, rule, lr=5.0, comm=comm)
    resumed.load_state_dict(state)
    loaded = DistributedOptimizer(arrays(5, comm.rank), rule, lr=5, comm=comm)
    assert load_checkpoint(tmp_path / "state.npz", loaded) == {"epoch": 3}
    json.dumps(loaded.state_dict()["options"])
    for again in (resumed, loaded):
        again.step(arrays(1, 2, comm.rank))
        for key in SHAPES:
            np.testing.assert_array_equal(again.params[key], params[key], strict=True)
    with pytest.raises(ValueError, match="another kind of optimizer"):
        load_checkpoint(tmp_path / "state.npz", DistributedSGD(arrays(0), 0.1, comm=comm))


@EACH
@on_each_rank(2)
def test_state_is_broadcast_to_ranks_that_took_no_step(comm, name):
    rule, options = RULES[name]
    optimizer = DistributedOptimizer(arrays(0, dtype=np.float32), rule, lr=0.1 + comm.rank, comm=comm, **options)
    if comm.rank == 1:
        for key, g in arrays(3, dtype=np.float32).items():
            rules.apply(rule, optimizer.params[key].copy(), g, optimizer._state[key], optimizer.options)
    optimizer.broadcast_optimizer_state(1)
    first, second = comm.allgather_object(optimizer.state_dict())
    assert first["options"] == second["options"] and first["options"]["lr"] == 1.1
    for key, own in second["state"].items():
        assert own.keys() == first["state"][key].keys()
        for slot, value in own.items():
            np.testing.assert_array_equal(first["state"][key][slot], value)
            assert first["state"][key][slot].dtype == value.dtype if slot != "step" else value == 1


@on_each_rank(1)
def test_a_state_that_does_not_fit_changes_nothing(comm):
    optimizer = DistributedOptimizer([np.ones(3)], lars, lr=0.1, comm=comm)
    good = optimizer.state_dict()
    for wrong in (
        {"rule": "lamb"},
        {"options": {"lr": -1.0}},
        {"overrides": {"7": {}}},
        {"state": {"0": {}, "1": {}}},
        {"state": {"0": {"velocity": np.ones(4)}}},
    ):
        with pytest.raises(ValueError):
            optimizer.load_state_dict({**good, **wrong})
        assert optimizer.state_dict() == good


@on_each_rank(2)
def test_a_rule_of_ones_own(comm):
    def signs(p, g, state, *, lr, kind="sign"):
        state["steps"] = state.get("steps", 0) + 1
        return p - lr * np.sign(g)

    params = [np.zeros(2)]
    optimizer = DistributedOptimizer(params, signs, lr=0.5, comm=comm)
    optimizer.step([np.array([3.0, -1.0])])
    optimizer.broadcast_optimizer_state()
    assert params[0].tolist() == [-0.5, 0.5]
    assert optimizer.state_dict()["state"] == {"0": {"steps": 1}}
