"""Rows drawn from the whole data set, batches that grow, and noise on gradients."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from pycollective.optim import GradientNoise, growing_batches, partition, sample_rows
from pycollective.optim.schedules import GrowingBatch


def rank(number, size=4):
    """There is no communication, so a rank need only be numbers."""
    return SimpleNamespace(rank=number, size=size)


def first_batches(count, *args, **options):
    return list(itertools.islice(growing_batches(*args, **options), count))


@pytest.mark.parametrize("n", [0, 1, 7, 100])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_all_ranks_draw_equally_many_rows_none_of_them_twice(n, size):
    for number in range(size):
        rows = sample_rows(n, rank(number, size), seed=1)
        assert len(rows) == n // size and len(set(rows.tolist())) == len(rows)
        assert rows.dtype == np.int64 and rows.flags.c_contiguous
        assert not rows.size or (rows.min() >= 0 and rows.max() < n)


def test_ranks_draw_independently_and_anew_in_each_epoch():
    mine = sample_rows(1000, rank(0), seed=1, epoch=2)
    np.testing.assert_array_equal(sample_rows(1000, rank(0), seed=1, epoch=2), mine)
    for other in ((1, 1, 2), (0, 2, 2), (0, 1, 3), (0, 2, 1)):
        rows = sample_rows(1000, rank(other[0]), seed=other[1], epoch=other[2])
        shared = len(set(rows.tolist()) & set(mine.tolist()))
        assert 35 <= shared <= 95  # 62.5 expected, with a standard deviation of 6.8
    assert len(set(sample_rows(1000, rank(0), seed=1).tolist()) & set(partition(1000, rank(0), seed=1).tolist())) < 95


def test_over_the_epochs_a_rank_sees_all_rows():
    drawn = [sample_rows(50, rank(3), seed=0, epoch=epoch) for epoch in range(40)]
    assert np.unique(drawn).tolist() == list(range(50))


def test_the_number_of_rows_can_be_given():
    rows = sample_rows(50, rank(3), seed=0, count=50)
    assert sorted(rows.tolist()) == list(range(50)) and rows.tolist() != list(range(50))
    with pytest.raises(ValueError, match="count must be an integer from 0 to 50, not 51"):
        sample_rows(50, rank(3), seed=0, count=51)


def shuffled(comm, n=100):
    return lambda epoch: partition(n, comm, seed=0, epoch=epoch, drop_last=True)


def test_batches_follow_the_schedule_on_all_ranks():
    growing = GrowingBatch(8, [3, 5], growth=4, limit=100)
    for number in range(4):
        lengths = [len(batch) for batch in first_batches(7, shuffled(rank(number)), growing, rank(number))]
        assert lengths == [2, 2, 2, 8, 8, 25, 25]


def test_no_row_is_lost_between_epochs():
    growing = GrowingBatch(8, [3, 5], growth=4, limit=100)
    batches = first_batches(9, shuffled(rank(1)), growing, rank(1))
    epochs = np.concatenate([shuffled(rank(1))(epoch) for epoch in range(8)])
    together = np.concatenate(batches)
    np.testing.assert_array_equal(together, epochs[: len(together)])


def test_a_batch_may_be_larger_than_an_epoch():
    (batch,) = first_batches(1, shuffled(rank(0, 1), 10), GrowingBatch(25, []), rank(0, 1))
    assert np.bincount(batch, minlength=10).tolist().count(0) == 0 and len(batch) == 25


def test_batches_are_rounded_up_so_that_ranks_have_equally_many():
    for one in (rank(r, 3) for r in range(3)):
        assert len(first_batches(1, shuffled(one, 99), GrowingBatch(10, []), one)[0]) == 4


def test_a_training_that_continues_gets_the_batches_it_would_have_had():
    growing = GrowingBatch(8, [3, 5], growth=4)
    whole = first_batches(9, shuffled(rank(2)), growing, rank(2))
    rest = first_batches(4, shuffled(rank(2)), growing, rank(2), first=5)
    assert [batch.tolist() for batch in rest] == [batch.tolist() for batch in whole[5:]]


def test_epochs_without_rows_are_refused():
    with pytest.raises(ValueError, match="no rows in epoch 0"):
        first_batches(1, shuffled(rank(0), 3), GrowingBatch(8, []), rank(0))
    with pytest.raises(TypeError, match="growing must be a GrowingBatch, not 8"):
        growing_batches(shuffled(rank(0)), 8, rank(0))
    with pytest.raises(TypeError, match="rows must be a function of the epoch"):
        growing_batches([1, 2], GrowingBatch(8, []), rank(0))


def test_factors_depend_on_rank_step_and_part_alone():
    noise = GradientNoise(64, 16, seed=3, comm=rank(1))
    mine = noise.factors(5, step=7, part=1)
    np.testing.assert_array_equal(GradientNoise(64, 16, seed=3, comm=rank(1)).factors(5, 7, 1), mine)
    for seed, number, step, part in ((4, 1, 7, 1), (3, 0, 7, 1), (3, 1, 8, 1), (3, 1, 7, 0)):
        assert not np.isclose(GradientNoise(64, 16, seed=seed, comm=rank(number)).factors(5, step, part), mine).any()


def test_factors_have_mean_1_and_a_variance_proportional_to_the_batch():
    for batch in (64, 256, 1024):
        drawn = GradientNoise(batch, 64, comm=rank(0)).factors(200_000, 0)
        assert drawn.mean() == pytest.approx(1, abs=0.05)
        assert drawn.var() == pytest.approx(batch / 64 - 1, rel=0.03, abs=1e-12)


def test_a_micro_batch_has_one_factor_for_all_its_gradients():
    gradients = {"w": np.arange(1.0, 4.0), "b": np.ones((2, 2), np.float32)}
    noise = GradientNoise(64, 16, comm=rank(0))
    noise.micro_batch(gradients, 5, 2)
    (factor,) = noise.factors(1, 5, 2)
    np.testing.assert_array_equal(gradients["w"], np.arange(1.0, 4.0) * factor)
    assert gradients["b"].dtype == np.float32
    np.testing.assert_allclose(gradients["b"], factor, rtol=1e-6)
    np.testing.assert_array_equal(noise.rows(np.arange(4.0), 5, 2), np.arange(4.0) * noise.factors(4, 5, 2))


@pytest.mark.torch
def test_the_losses_of_torch_stay_in_its_graph():
    torch = pytest.importorskip("torch")
    noise = GradientNoise(64, 16, comm=rank(0))
    w = torch.ones(1, requires_grad=True)
    x = torch.arange(4, dtype=torch.float32)
    losses = noise.rows(w * x, step=2)
    assert losses.dtype == torch.float32
    losses.sum().backward()
    assert w.grad.item() == pytest.approx((noise.factors(4, 2) * np.arange(4)).sum(), rel=1e-5)


def test_wrong_noise_is_refused():
    with pytest.raises(ValueError, match="base must be an integer from 1 to 16, not 64"):
        GradientNoise(16, 64, comm=rank(0))
    with pytest.raises(ValueError, match="batch must be an integer from 1 to 9223372036854775807, not <int>"):
        GradientNoise(10**5000, 64, comm=rank(0))
    noise = GradientNoise(64, 16, comm=rank(0))
    with pytest.raises(ValueError, match="losses must have one element per row"):
        noise.rows(np.zeros((3, 2)), 0)
    with pytest.raises(ValueError, match="step must be an integer of at least 0"):
        noise.rows(np.zeros(3), -1)
    with pytest.raises(TypeError, match="grads must be arrays in a dict or a list"):
        noise.micro_batch(3.0, 0)
