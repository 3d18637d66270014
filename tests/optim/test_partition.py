"""Shares of the data: disjoint, complete, and the same shuffle everywhere."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from pycollective.optim import partition


def shares(n, size, **options):
    """Every rank's share; there is no communication, so ranks need only be numbers."""
    return [partition(n, SimpleNamespace(rank=rank, size=size), **options) for rank in range(size)]


@pytest.mark.parametrize("n", [0, 1, 7, 100])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("seed", [None, 5])
def test_shares_are_disjoint_and_complete(n, size, contiguous, seed):
    parts = shares(n, size, contiguous=contiguous, seed=seed)
    assert sorted(np.concatenate(parts)) == list(range(n))
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= 1
    assert all(part.dtype == np.int64 and part.flags.c_contiguous for part in parts)


@pytest.mark.parametrize("contiguous", [False, True])
def test_drop_last_makes_equal_shares_and_leaves_out_others_each_epoch(contiguous):
    left_out = set()
    for epoch in range(20):
        parts = shares(10, 4, contiguous=contiguous, seed=0, epoch=epoch, drop_last=True)
        assert [len(part) for part in parts] == [2, 2, 2, 2]
        used = set(np.concatenate(parts).tolist())
        assert len(used) == 8
        left_out |= set(range(10)) - used
    assert left_out == set(range(10))


def test_layouts():
    assert [part.tolist() for part in shares(7, 3)] == [[0, 3, 6], [1, 4], [2, 5]]
    assert [part.tolist() for part in shares(7, 3, contiguous=True)] == [[0, 1, 2], [3, 4], [5, 6]]


def test_the_shuffle_depends_on_seed_and_epoch_alone():
    (first,) = shares(50, 1, seed=1, epoch=2)
    assert not np.array_equal(first, np.arange(50))
    (again,) = shares(50, 1, seed=1, epoch=2)
    np.testing.assert_array_equal(again, first)
    for other in ({"seed": 1, "epoch": 3}, {"seed": 2, "epoch": 2}, {"seed": 2, "epoch": 1}):
        assert not np.array_equal(shares(50, 1, **other)[0], first)


def test_batches_of_all_ranks_are_the_batches_of_one():
    (alone,) = shares(96, 1, seed=3)
    together = shares(96, 4, seed=3)
    for i in range(96 // 24):
        batches = np.concatenate([part[6 * i : 6 * i + 6] for part in together])
        assert sorted(batches) == sorted(alone[24 * i : 24 * i + 24])
