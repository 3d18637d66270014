"""A sampler that distributes the rest of an epoch among the remaining ranks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sized
from typing import Any

import torch.utils.data

from pycollective.hvd.basics import rank, size


class ElasticSampler(torch.utils.data.Sampler):
    """Indices of a dataset for this rank, like torch's DistributedSampler, without those already processed.

    Keep it in a TorchState: after a rank is lost, the unprocessed indices are redistributed. Call `record_batch` after
    each batch, and `set_epoch` at the end of an epoch. All ranks get the same number of indices; some indices are
    repeated if there are too few.

    Attributes:
        epoch: with `seed`, seeds the order.
        processed_num: number of indices that all ranks together have processed in this epoch.
        num_replicas, rank: size() and rank() at the last reset.
        remaining_indices: those of all ranks, in the order of the epoch.
        num_samples, total_size: number of indices per rank, and in total.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        """Args: dataset: of constant length; shuffle: use a new random order for each epoch; seed: seeds that order.

        Raises:
            ValueError: init() was not called.
        """
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, with nothing processed. Call it at the end of the previous one, so that a restore sees it."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that every rank has processed a batch of this many indices."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """The argument of `load_state_dict`: epoch and processed_num."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the position in an epoch, and distribute the rest among the current ranks."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Distribute the rest of the epoch among the current ranks."""
        self.num_replicas, self.rank = size(), rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)  # Horovod's order
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """This rank's indices: every num_replicas-th, starting over if there are too few."""
        again = itertools.cycle(self.remaining_indices)
        return itertools.islice(again, self.rank, self.total_size, self.num_replicas)

    def __len__(self) -> int:
        return self.num_samples
