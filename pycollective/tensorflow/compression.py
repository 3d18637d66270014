"""Compression of gradients for communication: casts to 16 bits and back."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from pycollective.hvd.gradients.compression import CastCompressor
from pycollective.hvd.gradients.compression import Compressor as Compressor
from pycollective.hvd.gradients.compression import NoneCompressor as NoneCompressor


class _TensorFlowCast(CastCompressor):
    @staticmethod
    def is_floating(dtype: tf.DType) -> bool:
        return bool(dtype.is_floating)

    @staticmethod
    def cast(tensor: tf.Tensor, dtype: tf.DType) -> Any:
        return tf.cast(tensor, dtype)


class FP16Compressor(_TensorFlowCast):
    """Sends floating-point tensors as float16."""

    dtype = tf.float16


class BF16Compressor(_TensorFlowCast):
    """Sends floating-point tensors as bfloat16: float32's range, eight bits of precision."""

    dtype = tf.bfloat16


class Compression:
    """The compressors by name, for the `compression` argument."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
