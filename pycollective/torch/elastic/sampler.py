"""A sampler that shares out what is left of an epoch among the ranks that are left."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sized
from typing import Any

import torch.utils.data

from pycollective.hvd.basics import rank, size


class ElasticSampler(torch.utils.data.Sampler):
    """Indices of a dataset for this rank, as torch's DistributedSampler gives them, without those already processed.

    Keep it in a TorchState: after a loss the indices that nobody has processed are shared out anew. Call `record_batch`
    after each batch, and `set_epoch` at the end of an epoch. All ranks get equally many indices; where these do not
    suffice some are given out twice.

    Attributes:
        epoch: seeds the order together with `seed`.
        processed_num: how many indices all ranks together have processed in this epoch.
        num_replicas, rank: size() and rank() at the last reset.
        remaining_indices: of all ranks, in the order of the epoch.
        num_samples, total_size: indices for each rank, and for all.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        """Args: dataset: of constant length; shuffle: in random order, a new one for each epoch; seed: of that order.

        Raises:
            ValueError: init() was not called.
        """
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, with nothing processed. At the end of the one before, so that a restore finds it begun."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that every rank has processed a batch of so many indices."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes: epoch and processed_num."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to a point in an epoch, and share out the rest of it among the present ranks."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Share out what is left of the epoch among the present ranks."""
        self.num_replicas, self.rank = size(), rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)  # Horovod's order
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """This rank's indices: every num_replicas-th; where they do not suffice, the first ones again."""
        again = itertools.cycle(self.remaining_indices)
        return itertools.islice(again, self.rank, self.total_size, self.num_replicas)

    def __len__(self) -> int:
        return self.num_samples
