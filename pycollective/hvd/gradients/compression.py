"""How tensors are compressed for communication, for all frameworks: a framework adds how it casts."""

from __future__ import annotations

from typing import Any


class Compressor:
    """How tensors are compressed for communication."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and what decompress needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The result in the form of the tensor that was compressed."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors unchanged."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class CastCompressor(Compressor):
    """Sends floating-point tensors in another type, all others unchanged.

    A framework's subclasses set `dtype` and define `is_floating` and `cast`.
    """

    dtype: Any

    @staticmethod
    def is_floating(dtype: Any) -> bool:
        """Return whether tensors of this type are cast."""
        raise NotImplementedError

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """The tensor in another type; differentiable where the framework differentiates."""
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        return (cls.cast(tensor, cls.dtype) if cls.is_floating(tensor.dtype) else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return cls.cast(tensor, ctx) if cls.is_floating(ctx) else tensor
