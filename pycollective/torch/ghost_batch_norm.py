"""Batch normalization over parts of a large batch, with the statistics of a small batch."""

from __future__ import annotations

from typing import Any

import torch

from pycollective import checks


class _GhostBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """Mixed in before nn.BatchNorm1d or 2d."""

    def __init__(self, num_features: int, ghost_size: int, **options: Any) -> None:
        """
        Args:
            num_features: channels, C.
            ghost_size: rows of a ghost batch, at least 1. Remaining rows are distributed over the ghost batches, which
                then have at least ghost_size and fewer than twice as many rows; a smaller batch is one ghost batch.
            options: eps, momentum, affine, track_running_stats, device, dtype, as for torch.nn.BatchNorm2d.
        """
        ghost_size = checks.integer(ghost_size, "ghost_size", 1)
        super().__init__(num_features, **options)
        self.ghost_size = ghost_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize: in training by the statistics of each ghost batch, in evaluation by the running statistics.

        Raises:
            ValueError: the shape does not fit; in training, a ghost batch has only one value per channel.
        """
        count = len(x) // self.ghost_size
        if not self.training or count < 2:
            return super().forward(x)
        self._check_input_dim(x)
        return torch.cat([super(_GhostBatchNorm, self).forward(part) for part in x.tensor_split(count)])

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, ghost_size={self.ghost_size}"


class GhostBatchNorm1d(_GhostBatchNorm, torch.nn.BatchNorm1d):
    """nn.BatchNorm1d that in training uses the statistics of ghost batches, each of about ghost_size rows.

    Inputs have shape (N, C) or (N, C, L). The running statistics are updated as if the ghost batches had been
    processed one after the other, the k-th of K with weight momentum * (1 - momentum) ** (K - k). Parameters and
    buffers are those of nn.BatchNorm1d, so state dicts are interchangeable. Source: Hoffer, Hubara and Soudry, "Train
    longer, generalize better", 2017, algorithm 1, https://arxiv.org/abs/1705.08741; there the weights decrease from the
    first ghost batch to the last and do not sum to one, and they apply to standard deviations, here to variances.
    """


class GhostBatchNorm2d(_GhostBatchNorm, torch.nn.BatchNorm2d):
    """Ghost batch normalisation for inputs of shape (N, C, H, W)."""
