"""Compression of gradients for communication: casts to 16 bits and back."""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """How a tensor is compressed before it is reduced. Subclasses are used as classes, not as instances."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor to send, and the context that `decompress` needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The result in the form of the tensor that was compressed."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors unchanged."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


class _CastCompressor(Compressor):
    """Sends floating-point tensors in another type, all others unchanged."""

    dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return (tensor.to(cls.dtype) if tensor.dtype.is_floating_point else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx) if ctx.is_floating_point else tensor


class FP16Compressor(_CastCompressor):
    """Sends floating-point tensors as float16."""

    dtype = torch.float16


class BF16Compressor(_CastCompressor):
    """Sends floating-point tensors as bfloat16: float32's range, eight bits of precision."""

    dtype = torch.bfloat16


class Compression:
    """The compressors by name, for the `compression` argument."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
