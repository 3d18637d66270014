"""Samplers of torch: the whole data set on every rank, and batches that grow."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from pycollective.optim import sample_rows  # noqa: E402
from pycollective.optim.schedules import GrowingBatch  # noqa: E402
from pycollective.torch.samplers import GrowingBatchSampler, IndependentSampler  # noqa: E402

pytestmark = pytest.mark.torch
DATA = torch.utils.data.TensorDataset(torch.arange(100))


def loader(**options):
    return torch.utils.data.DataLoader(DATA, **options)


def test_indices_are_those_of_sample_rows_and_change_with_the_epoch():
    sampler = IndependentSampler(DATA, num_replicas=4, rank=3, seed=5)
    assert len(sampler) == 25
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        read = torch.cat([batch for (batch,) in loader(sampler=sampler, batch_size=7)]).tolist()
        assert read == sample_rows(100, SimpleNamespace(rank=3, size=4), seed=5, epoch=epoch).tolist()


def test_every_rank_has_the_same_number_of_batches():
    lengths = {len(loader(sampler=IndependentSampler(DATA, num_replicas=3, rank=r), batch_size=8)) for r in range(3)}
    assert lengths == {5}
    assert len(list(IndependentSampler(DATA, 3, 0, count=80))) == 80


def test_wrong_ranks_are_refused():
    with pytest.raises(ValueError, match="rank must be an integer from 0 to 2, not 3"):
        IndependentSampler(DATA, 3, 3)
    with pytest.raises(ValueError, match="count must be an integer from 0 to 100, not 101"):
        IndependentSampler(DATA, 3, 0, count=101)


def test_a_loaders_batches_grow_and_follow_the_epochs_of_the_sampler():
    sampler = IndependentSampler(DATA, num_replicas=4, rank=1)
    growing = GrowingBatch(8, [3, 5], growth=4, limit=100)
    batches = GrowingBatchSampler(sampler, growing, steps=7, num_replicas=4)
    read = [batch.tolist() for (batch,) in loader(batch_sampler=batches)]
    assert [len(batch) for batch in read] == [2, 2, 2, 8, 8, 25, 25] and len(batches) == 7
    expected = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        expected += list(sampler)
    assert [index for batch in read for index in batch] == expected[: sum(map(len, read))]
    again = GrowingBatchSampler(sampler, growing, steps=7, first=5, num_replicas=4)
    assert [batch.tolist() for (batch,) in loader(batch_sampler=again)] == read[5:]


def test_torchs_own_sampler_can_be_grown():
    sampler = torch.utils.data.DistributedSampler(DATA, num_replicas=4, rank=1, drop_last=True)
    batches = GrowingBatchSampler(sampler, GrowingBatch(40, []), steps=6, num_replicas=4)
    read = [index for (batch,) in loader(batch_sampler=batches) for index in batch.tolist()]
    sampler.set_epoch(1)
    assert len(read) == 60 and read[25:50] == list(sampler)
