"""Compression of gradients for communication: casts to 16 bits and back, for tensors of every backend of Keras."""

from __future__ import annotations

from typing import Any

from pycollective.hvd.gradients.compression import CastCompressor
from pycollective.hvd.gradients.compression import Compressor as Compressor
from pycollective.hvd.gradients.compression import NoneCompressor as NoneCompressor
from pycollective.keras import backends


class _KerasCast(CastCompressor):
    @staticmethod
    def is_floating(dtype: Any) -> bool:
        return "float" in str(dtype)  # of TensorFlow, NumPy or torch

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return backends.of_tensor(tensor).cast(tensor, dtype)


class FP16Compressor(_KerasCast):
    """Sends floating-point tensors as float16."""

    dtype = "float16"


class BF16Compressor(_KerasCast):
    """Sends floating-point tensors as bfloat16: float32's range, eight bits of precision."""

    dtype = "bfloat16"


class Compression:
    """The compressors by name, for the `compression` argument."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
