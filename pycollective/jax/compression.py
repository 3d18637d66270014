"""Compression of gradients for communication."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from pycollective.hvd.gradients.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["Compression", "Compressor"]


class _Cast(CastCompressor):
    @staticmethod
    def is_floating(dtype: Any) -> bool:
        return bool(jnp.issubdtype(dtype, jnp.floating))

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tensor.astype(dtype)


class _Float16(_Cast):
    dtype = jnp.float16


class _Bfloat16(_Cast):
    dtype = jnp.bfloat16


class Compression:
    """How gradients are sent: unchanged (none), as 16-bit floating-point numbers (fp16) or as bfloat16 (bf16)."""

    none = NoneCompressor
    fp16 = _Float16
    bf16 = _Bfloat16
