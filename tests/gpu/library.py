"""A small array library on the emulated GPU, with what the array API standard and cupy have of what is used here.

As `sys.modules["cupy"]` it is what the package takes for cupy. Arithmetic runs on the host, which can address the
emulated memory, after all work in the default stream. Like cupy, it refuses arrays in host memory, so that a hidden
copy through NumPy is an error.
"""

from __future__ import annotations

import contextlib
import ctypes
import operator
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from pycollective.comm.cuda.arrays import allocate
from pycollective.comm.cuda.runtime import load

float32, float64 = np.dtype("float32"), np.dtype("float64")


class Device(contextlib.nullcontext[None]):
    id = 0


class Array:
    """An array, or a contiguous part of one: `owner` keeps the memory alive."""

    def __init__(self, owner: Any, address: int, shape: tuple[int, ...], dtype: Any) -> None:
        self.owner, self.address, self.shape, self.dtype = owner, address, tuple(shape), np.dtype(dtype)

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return sys.modules[__name__]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False), "version": 3}

    @property
    def device(self) -> Any:
        return Device()

    @property
    def host(self) -> np.ndarray[Any, Any]:
        """Its memory, as the host sees it."""
        load().synchronize(0)
        count = int(np.prod(self.shape))
        memory = (ctypes.c_uint8 * (count * self.dtype.itemsize)).from_address(self.address)
        return np.frombuffer(memory, self.dtype).reshape(self.shape)

    def __getitem__(self, key: Any) -> Array:
        part = self.host[key]
        if not isinstance(part, np.ndarray):
            return asarray(part)
        return Array(self.owner, part.__array_interface__["data"][0], part.shape, self.dtype)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.host[key] = _operand(value)

    def __float__(self) -> float:
        return float(self.host)


ndarray = Array
cuda = SimpleNamespace(
    get_current_stream=lambda: SimpleNamespace(ptr=0), ExternalStream=lambda stream, device: contextlib.nullcontext()
)


def _operand(x: Any) -> Any:
    if isinstance(x, Array):
        return x.host
    if isinstance(x, np.ndarray):
        raise TypeError("an array in host memory")
    return x


def _binary(function: Callable[..., Any], swapped: bool = False) -> Any:
    def method(self: Array, other: Any) -> Array:
        operands = (_operand(other), self.host) if swapped else (self.host, _operand(other))
        return _made(function(*operands))

    return method


def _inplace(function: Callable[..., Any]) -> Any:
    def method(self: Array, other: Any) -> Array:
        function(self.host, _operand(other))
        return self

    return method


for _name in ("add", "sub", "mul", "truediv", "and", "pow"):
    _function = getattr(operator, f"{_name}_" if _name == "and" else _name)
    setattr(Array, f"__{_name}__", _binary(_function))
    setattr(Array, f"__r{_name}__", _binary(_function, swapped=True))
for _name in ("gt", "lt", "eq"):
    setattr(Array, f"__{_name}__", _binary(getattr(operator, _name)))
for _name in ("iadd", "isub", "imul"):
    setattr(Array, f"__{_name}__", _inplace(getattr(operator, _name)))
Array.__hash__ = None  # type: ignore[assignment]


def _made(host: Any) -> Array:
    """A new array with the content of a host array."""
    made = empty(np.shape(host), np.asarray(host).dtype)
    made.host[...] = host
    return made


def asarray(x: Any, dtype: Any = None) -> Array:
    host = np.asarray(x.host if isinstance(x, Array) else x, dtype)
    return x if isinstance(x, Array) and host.dtype == x.dtype else _made(host)


def empty(shape: Any, dtype: Any = float64) -> Array:
    dtype = np.dtype(dtype)
    return from_dlpack(allocate(tuple(np.atleast_1d(shape)) if np.ndim(shape) == 0 else tuple(shape), dtype.name, 0))


def from_dlpack(x: Any) -> Array:
    """Convert a DeviceArray, and only that; it keeps the memory alive."""
    if not isinstance(x, load().DeviceArray):
        raise BufferError(f"not in device memory: {type(x).__name__}")
    return Array(x, x.address, x.shape, np.dtype(x.dtype))


def reshape(x: Array, shape: Any) -> Array:
    return Array(x.owner, x.address, tuple(shape), x.dtype)


def _on_host(function: Callable[..., Any]) -> Callable[..., Array]:
    return lambda *x: _made(function(*map(_operand, x)))


zeros_like, ones_like, sqrt = _on_host(np.zeros_like), _on_host(np.ones_like), _on_host(np.sqrt)
sum, where = _on_host(np.sum), _on_host(np.where)
