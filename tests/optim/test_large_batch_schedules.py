"""Schedules have their papers' values, and the noise scale finds the known noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from calls import on_each_rank

import pycollective as pc
from pycollective.optim import NoiseScale, schedules


def test_scaling():
    assert schedules.linear_scaling(0.1, batch=8192, base=256) == pytest.approx(3.2)
    assert schedules.sqrt_scaling(0.1, batch=4096, base=256) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (schedules.constant(), {0: 1, 10**9: 1}),
        (schedules.decay_steps([3, 5]), {0: 1, 2: 1, 3: 0.1, 4: 0.1, 5: 0.01, 99: 0.01}),
        (schedules.decay_steps([2], factor=0.5), {1: 1, 2: 0.5}),
        (schedules.polynomial(10), {0: 1, 3: 0.7, 10: 0, 11: 0}),
        (schedules.polynomial(10, power=2, end=0.1), {0: 1, 5: 0.1 + 0.9 * 0.25, 10: 0.1, 99: 0.1}),
        (schedules.cosine(6), {0: 1, 1: (1 + math.sqrt(3) / 2) / 2, 3: 0.5, 6: 0, 7: 0}),
        (schedules.cosine(6, end=0.2), {0: 1, 3: 0.6, 6: 0.2}),
        (schedules.warm_up(4), {0: 0, 1: 0.25, 3: 0.75, 4: 1, 5: 1}),
        (schedules.warm_up(4, start=0.2), {0: 0.2, 2: 0.6, 4: 1}),
        (schedules.warm_up(0, schedules.polynomial(2)), {0: 1, 1: 0.5}),
        (schedules.warm_up(5, schedules.polynomial(10), start=0.1), {0: 0.1, 1: 0.18, 5: 0.5, 6: 0.4, 10: 0}),
        (schedules.warm_up(2, schedules.decay_steps([4])), {1: 0.5, 3: 1, 4: 0.1}),  # milestones from the beginning
    ],
)
def test_values(schedule, values):
    assert {step: schedule(step) for step in values} == pytest.approx(values)


def test_growing_batches_keep_the_ratio_of_rate_and_batch():
    growing = schedules.GrowingBatch(128, [10, 20, 30], growth=5, limit=1000)
    steps = [0, 9, 10, 20, 30, 99]
    assert [growing.batch(step) for step in steps] == [128, 128, 640, 1000, 1000, 1000]
    decayed = schedules.decay_steps([10, 20, 30], 1 / 5)
    for step in steps:
        assert growing.lr(step) / growing.batch(step) == pytest.approx(decayed(step) / 128)
    assert [growing.passes(step, rows=32, ranks=2) for step in steps] == [2, 2, 10, 16, 16, 16]
    assert growing.passes(0, rows=1000, ranks=2) == 1
    assert [schedules.GrowingBatch(100, [1], 1.5).batch(step) for step in (0, 1)] == [100, 150]
    assert schedules.GrowingBatch(100, [1]).lr(5) == 1
    for wrong in ({"start": 0}, {"growth": 0.5}, {"limit": 50}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            schedules.GrowingBatch(**{"start": 100, "milestones": [1], **wrong})


ROWS, DIMENSIONS = 4, 50


@pytest.mark.parametrize("n", [2, 3])
@on_each_rank()
def test_noise_scale_of_gradients_of_known_noise(comm):
    """tr(S) is 50 * 9, |G|^2 is 50, and a gradient of B rows has covariance S / B."""
    rng = np.random.default_rng(comm.rank)
    scale = NoiseScale(ROWS, decay=0.0, comm=comm)
    mine = 1 + rng.normal(size=(400, DIMENSIONS)) * 3 / math.sqrt(ROWS)
    mean = comm.allreduce(mine, op="avg")
    found = []
    for local, averaged in zip(mine, mean, strict=True):
        scale.update({"a": local[:20], "b": local[20:].astype(np.float32)}, [averaged])
        found.append((scale.signal, scale.noise))
    seen = np.array(found)
    for i, truth in enumerate((50.0, 450.0)):
        error = seen[:, i].std() / math.sqrt(len(seen))
        assert abs(seen[:, i].mean() - truth) < 4 * error < truth / 4
    smooth = NoiseScale(ROWS, decay=0.99, comm=comm)
    *_, value = (smooth.update(float(a @ a), float(b @ b)) for a, b in zip(mine, mean, strict=True))
    weights = 0.99 ** np.arange(400)[::-1]
    signal, noise = weights / weights.sum() @ seen
    assert (smooth.signal, smooth.noise) == pytest.approx((signal, noise), rel=1e-5)
    assert value == smooth.value == pytest.approx(noise / signal, rel=1e-5)
    assert set(comm.allgather_object(value)) == {value}


@pytest.mark.torch
def test_noise_scale_takes_tensors_and_reports_a_missing_signal():
    torch = pytest.importorskip("torch")

    def body(comm):
        scale = NoiseScale(2, comm=comm)
        assert math.isnan(scale.value)
        local = torch.tensor([1.0, 1.0]) if comm.rank else torch.tensor([3.0, -1.0])
        value = scale.update([local.half()], {"w": torch.tensor([2.0, 0.0])})
        # small = (10 + 2) / 2, large = 4: |G|^2 = (4 * 4 - 2 * 6) / 2, tr(S) = (6 - 4) / (1 / 2 - 1 / 4)
        assert (scale.signal, scale.noise, value) == (2, 8, 4)
        assert math.isnan(NoiseScale(2, comm=comm).update(1.0, 0.25))
        for wrong in ({"rows": 0}, {"rows": 1, "decay": 1.0}):
            with pytest.raises(ValueError, match=r"(rows|decay) must be .* at least [01]"):
                NoiseScale(**wrong, comm=comm)

    pc.local_world(2).run(body)
    with pytest.raises(ValueError, match="two ranks"):
        pc.local_world(1).run(lambda comm: NoiseScale(1, comm=comm))
