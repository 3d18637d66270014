"""Samplers of torch for the ways of `pycollective.optim` to distribute rows and to grow batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sized
from types import SimpleNamespace
from typing import Any

import torch

from pycollective import checks
from pycollective.optim.partition import growing_batches, sample_rows
from pycollective.optim.schedules import GrowingBatch
from pycollective.torch.mpi_ops import rank as this_rank
from pycollective.torch.mpi_ops import size


class IndependentSampler(torch.utils.data.Sampler):
    """Indices that this rank draws at random from the whole dataset, independently of the other ranks.

    As `pycollective.optim.sample_rows`: equally many on all ranks, reshuffled in each epoch. Call `set_epoch` before an
    epoch. Where each index should be processed by exactly one rank, use torch's DistributedSampler.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        seed: int = 0,
        count: int | None = None,
    ) -> None:
        """
        Args:
            dataset: of constant length.
            num_replicas, rank: by default size() and rank().
            seed: of the samples.
            count: number of indices in an epoch, at most len(dataset); by default len(dataset) // num_replicas.

        Raises:
            ValueError: init() was not called and numbers are missing; a number is out of range.
        """
        self.num_replicas = size() if num_replicas is None else checks.integer(num_replicas, "num_replicas", 1)
        self.rank = checks.integer(this_rank() if rank is None else rank, "rank", 0, self.num_replicas - 1)
        self.dataset, self.seed, self.epoch = dataset, checks.integer(seed, "seed", 0), 0
        self.count = None if count is None else checks.integer(count, "count", 0, len(dataset))

    def set_epoch(self, epoch: int) -> None:
        """Select the epoch, from 0, of the next iteration."""
        self.epoch = checks.integer(epoch, "epoch", 0)

    def __iter__(self) -> Iterator[int]:
        comm: Any = SimpleNamespace(rank=self.rank, size=self.num_replicas)
        rows = sample_rows(len(self.dataset), comm, seed=self.seed, epoch=self.epoch, count=self.count)
        return iter(rows.tolist())

    def __len__(self) -> int:
        return len(self.dataset) // self.num_replicas if self.count is None else self.count


class GrowingBatchSampler(torch.utils.data.Sampler):
    """Batches of indices whose size follows a `GrowingBatch`: the batch_sampler of a DataLoader.

        sampler = DistributedSampler(dataset, drop_last=True)          # or IndependentSampler
        loader = DataLoader(dataset, batch_sampler=GrowingBatchSampler(sampler, growing, steps=5000))
        for step, (x, y) in enumerate(loader): ...

    One iteration is the whole training: epochs follow one another, as in `pycollective.optim.growing_batches`, which
    describes the batches.
    """

    def __init__(
        self,
        sampler: Iterable[int],
        growing: GrowingBatch,
        steps: int,
        first: int = 0,
        num_replicas: int | None = None,
    ) -> None:
        """
        Args:
            sampler: indices of this rank in one epoch; its set_epoch is called if it has one.
            growing: the schedule of batches of all ranks together.
            steps: number of steps of the training.
            first: step to begin with, when a training continues.
            num_replicas: by default size().

        Raises:
            TypeError, ValueError: growing is no GrowingBatch; a number is out of range.
        """
        self.sampler = sampler
        self.growing = checks.instance(growing, "growing", GrowingBatch, "a GrowingBatch")
        self.steps = checks.integer(steps, "steps", 0)
        self.first = checks.integer(first, "first", 0, self.steps)
        self.num_replicas = size() if num_replicas is None else checks.integer(num_replicas, "num_replicas", 1)

    def __iter__(self) -> Iterator[list[int]]:
        comm: Any = SimpleNamespace(rank=0, size=self.num_replicas)  # its rows come from the sampler
        batches = growing_batches(self._epoch, self.growing, comm, first=self.first)
        return (batch.tolist() for batch in itertools.islice(batches, len(self)))

    def __len__(self) -> int:
        return self.steps - self.first

    def _epoch(self, epoch: int) -> list[int]:
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        return list(self.sampler)
