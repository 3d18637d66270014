"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from pycollective.hvd.arguments import Sum
from pycollective.hvd.basics import size
from pycollective.torch.hvd.data_movement import allgather
from pycollective.torch.hvd.reductions import allreduce


class SyncBatchNorm(_BatchNorm):
    """nn.BatchNorm1d/2d/3d that in training uses the mean and variance over all ranks' batches.

    Inputs have shape (N, C) or (N, C, ...), on CPUs too; N may differ between ranks and be 0 on some. Arguments and
    attributes are those of torch.nn.BatchNorm2d. Partial means and variances are combined by the formula of Chan, Golub
    and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
    """

    def _check_input_dim(self, x: torch.Tensor) -> None:
        if x.dim() < 2:
            raise ValueError(f"expected an input of at least 2 dimensions, got {x.dim()}")
        if x.shape[1] != self.num_features and (self.affine or self.track_running_stats):
            raise ValueError(f"expected an input of {self.num_features} channels, got {x.shape[1]}")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize: in training with the statistics of all ranks, in evaluation with the running statistics.

        Raises:
            ValueError: the shape does not fit; in training, on all ranks, if there is at most one value per channel.
        """
        self._check_input_dim(x)
        training = self.training or not self.track_running_stats
        if not training or size() == 1:
            return super().forward(x)
        output, mean, variance, count = _SyncBatchNorm.apply(x, self.weight, self.bias, self.eps)
        if self.track_running_stats:
            self._track(mean, variance, float(count))
        return output

    def _track(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None and self.running_var is not None
        self.num_batches_tracked += 1
        factor = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1))
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)


def _per_channel(values: torch.Tensor, dims: int) -> torch.Tensor:
    """(C,) -> a shape that broadcasts to (N, C, ...)."""
    return values.view(1, -1, *[1] * (dims - 2))


class _SyncBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> Any:
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        axes = [0, *range(2, x.dim())]
        mine = x.to(wide)
        rows = x.numel() // x.shape[1]
        mean = mine.mean(axes) if rows else mine.new_zeros(x.shape[1])
        scatter = ((mine - _per_channel(mean, x.dim())) ** 2).sum(axes)  # squared deviations, summed
        parts = allgather(torch.cat([mean, scatter, mean.new_full((1,), rows)]).unsqueeze(0))
        means, scatters, counts = parts.split([x.shape[1], x.shape[1], 1], dim=1)
        count = counts.sum()
        if count <= 1:
            raise ValueError(f"the ranks have only {int(count)} value per channel to train with: there is no variance")
        total = (means * counts).sum(0) / count
        variance = ((scatters + counts * (means - total) ** 2).sum(0)) / count
        inverse = torch.rsqrt(variance + eps)
        normal = (mine - _per_channel(total, x.dim())) * _per_channel(inverse, x.dim())
        ctx.save_for_backward(normal, weight, inverse, count)
        ctx.axes, ctx.dtype = axes, x.dtype
        ctx.mark_non_differentiable(total, variance, count)
        output = normal if weight is None else normal * _per_channel(weight.to(wide), x.dim())
        output = output if bias is None else output + _per_channel(bias.to(wide), x.dim())
        return output.to(x.dtype), total, variance, count

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Ioffe and Szegedy, "Batch Normalization", 2015, with the two sums taken over all ranks."""
        normal, weight, inverse, count = ctx.saved_tensors
        g = gradients[0].to(normal.dtype)
        dims = g.dim()
        to_bias, to_weight = g.sum(ctx.axes), (g * normal).sum(ctx.axes)
        to_x = None
        if ctx.needs_input_grad[0]:
            sums = allreduce(torch.stack([to_bias, to_weight]), op=Sum)
            scale = inverse if weight is None else inverse * weight.to(normal.dtype)
            to_x = g - (_per_channel(sums[0], dims) + normal * _per_channel(sums[1], dims)) / count
            to_x = (to_x * _per_channel(scale, dims)).to(ctx.dtype)
        return (
            to_x,
            to_weight.to(weight.dtype) if weight is not None and ctx.needs_input_grad[1] else None,
            to_bias.to(weight.dtype) if weight is not None and ctx.needs_input_grad[2] else None,
            None,
        )
