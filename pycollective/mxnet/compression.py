"""Compression of gradients for communication: a cast to 16 bits and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycollective.hvd.gradients.compression import CastCompressor
from pycollective.hvd.gradients.compression import Compressor as Compressor
from pycollective.hvd.gradients.compression import NoneCompressor as NoneCompressor


class FP16Compressor(CastCompressor):
    """Sends floating-point NDArrays as float16."""

    dtype = np.float16

    @staticmethod
    def is_floating(dtype: Any) -> bool:
        return bool(np.dtype(dtype).kind == "f")

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tensor.astype(dtype, copy=False)


class Compression:
    """The compressors by name, for the `compression` argument."""

    none = NoneCompressor
    fp16 = FP16Compressor
