"""Compression of gradients for communication: casts to 16 bits and back."""

from __future__ import annotations

from typing import Any

import torch

from pycollective.hvd.gradients.compression import CastCompressor
from pycollective.hvd.gradients.compression import Compressor as Compressor
from pycollective.hvd.gradients.compression import NoneCompressor as NoneCompressor


class _TorchCast(CastCompressor):
    @staticmethod
    def is_floating(dtype: torch.dtype) -> bool:
        return bool(dtype.is_floating_point)

    @staticmethod
    def cast(tensor: torch.Tensor, dtype: torch.dtype) -> Any:
        return tensor.to(dtype)


class FP16Compressor(_TorchCast):
    """Sends floating-point tensors as float16."""

    dtype = torch.float16


class BF16Compressor(_TorchCast):
    """Sends floating-point tensors as bfloat16: float32's range, eight bits of precision."""

    dtype = torch.bfloat16


class Compression:
    """The compressors by name, for the `compression` argument."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
