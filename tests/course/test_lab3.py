"""Lab 3: its network, how it trains and measures."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import pycollective as pc
from launch import needs


def easy(rows=300, classes=3):
    """Rows near one of `classes` points; a quarter as many for testing."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(classes, 6))
    y = rng.integers(classes, size=rows + rows // 4)
    x = (points[y] + 0.3 * rng.normal(size=(len(y), 6))).astype(np.float32)
    parts = {"train_x": x[:rows], "train_y": y[:rows], "test_x": x[rows:], "test_y": y[rows:]}
    return SimpleNamespace(**parts, classes=classes)


def gradients(network, p, x, y, factors=1.0):
    found = {name: np.empty_like(value) for name, value in p.items()}
    network.backward(p, x, y, found, factors)
    return found


@pytest.mark.parametrize("options", [("relu",), ("sigmoid",), ("relu", "local"), ("sigmoid", "local", 5)], ids=str)
def test_gradients_are_the_slopes_of_the_loss(from_course, options):
    network = from_course("lab3_network").Network((6, 8, 7, 3), *options)
    rng, data = np.random.default_rng(1), easy()
    p = {name: value.astype(np.float64) + 0.1 for name, value in network.parameters(0).items()}
    x, y = data.train_x[:20].astype(np.float64), data.train_y[:20]
    found, small, room = gradients(network, p, x, y), 1e-6, {name: np.empty_like(value) for name, value in p.items()}
    for name, value in p.items():
        way = rng.normal(size=value.shape)
        above, below = (network.backward({**p, name: value + s * small * way}, x, y, room) for s in (1, -1))
        slope = (above - below) / (2 * small)
        assert slope == pytest.approx(float((found[name] * way).sum()), rel=1e-3, abs=1e-6), name


def test_factors_multiply_the_gradients_of_rows(from_course):
    network, data = from_course("lab3_network").Network((6, 8, 3)), easy()
    p, x, y = network.parameters(0), data.train_x[:8], data.train_y[:8]
    factors = np.arange(8.0)
    found = gradients(network, p, x, y, factors)
    rows = [gradients(network, p, x[i : i + 1], y[i : i + 1]) for i in range(8)]
    for name, value in found.items():
        expected = sum(factor * row[name] for factor, row in zip(factors, rows, strict=True)) / 8
        np.testing.assert_allclose(value, expected, atol=1e-5)


def test_synchronised_statistics_are_those_of_all_rows(from_course):
    module, data = from_course("lab3_network"), easy()
    x, y = data.train_x[:32], data.train_y[:32]

    def one(network, comm):
        p, share = network.parameters(0, comm), slice(comm.rank, None, comm.size)
        found = gradients(network, p, x[share], y[share])
        return {name: comm.allreduce(value, op="avg") for name, value in found.items()}

    sizes = (6, 8, 8, 3)
    together = pc.local_world(2).run(lambda comm: one(module.Network(sizes, norm="synchronised"), comm))[0]
    alone = pc.local_world(1).run(lambda comm: one(module.Network(sizes, norm="local"), comm))[0]
    apart = pc.local_world(2).run(lambda comm: one(module.Network(sizes, norm="local"), comm))[0]
    for name, value in alone.items():
        np.testing.assert_allclose(together[name], value, atol=1e-5)
    assert not np.allclose(apart["w0"], alone["w0"], atol=1e-3)


def test_training_is_the_same_on_one_rank_and_on_several(from_course):
    module, data = from_course("lab3_network"), easy()
    one, three = (
        module.train(data, module.Network((6, 8, 3)), 192, 30, module.sgd(0.2, 0.9), ranks=ranks) for ranks in (1, 3)
    )
    assert one.accuracy == three.accuracy > 0.9
    assert one.losses[0] > 2 * one.losses[-1]
    for name, value in one.parameters.items():
        np.testing.assert_allclose(three.parameters[name], value, atol=1e-4)


def test_training_ends_when_it_diverges_or_the_watch_says_so(from_course):
    module, data = from_course("lab3_network"), easy()
    far = module.train(data, module.Network((6, 8, 8, 3)), 64, 200, module.sgd(1e6), ranks=1)
    assert far.diverged and far.accuracy == pytest.approx(1 / 3) and len(far.losses) < 200
    seen = []
    options = {"ranks": 3, "watch": lambda step, *_: seen.append(step) or step == 4}
    module.train(data, module.Network((6, 8, 3)), 192, 50, module.sgd(0.1), **options)
    assert seen == [0, 1, 2, 3, 4]


def test_rates_are_chosen_with_other_rows_and_seeds(from_course):
    pytest.importorskip("sklearn")
    module = from_course("lab3_network")
    data, validation = module.split(from_course("data").load("digits"))
    assert len(data.train_x) == 1024 and len(data.test_x) == 449
    assert validation.train_x is data.train_x and len(validation.test_x) == 1348 - 1024
    rows = {x.tobytes() for x in data.train_x} | {x.tobytes() for x in data.test_x}
    assert sum(x.tobytes() in rows for x in validation.test_x) == 0
    asked = []

    def trained(lr, seed):
        asked.append(seed)
        return SimpleNamespace(accuracy=-((lr - 0.3) ** 2))

    assert module.best_rate(module.powers(-3, 0), trained) == 0.25
    assert min(asked) >= 100


def test_biases_have_their_own_rate(from_course):
    module = from_course("lab3_network")
    from pycollective.optim import larc

    def rates(comm):
        made = module.layer_wise(larc, 8.0, biases=0.1)(module.Network((6, 8, 3)).parameters(0), comm)
        return {name: made.overrides.get(name, made.options)["lr"] for name in made.gradients}

    assert pc.local_world(1).run(rates)[0] == {"w0": 8.0, "b0": 0.1, "w1": 8.0, "b1": 0.1}


def test_the_noise_scale_is_the_gradients_variance_over_their_square(from_course, monkeypatch):
    """Noise scale of the first step of a training, whose rate is 0: all batches are of the same distribution."""
    needs("sklearn", "matplotlib")
    lab, data, network = from_course("lab3_steps_to_target"), easy(512), from_course("lab3_network").Network((6, 8, 3))
    monkeypatch.setattr(lab, "HIDDEN", 8)
    p = network.parameters(0)
    rows = [gradients(network, p, data.train_x[i : i + 1], data.train_y[i : i + 1]) for i in range(512)]
    flat = np.array([np.concatenate([g.ravel() for g in row.values()]) for row in rows])
    exact = flat.var(0).sum() / (flat.mean(0) ** 2).sum()
    found = lab.noise_scales(data, 2, 0.0, 200, 16)
    assert np.median(found[20:]) == pytest.approx(exact, rel=0.25)
