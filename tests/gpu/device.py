"""Device arrays for tests without a GPU library: created from host arrays, and read back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from calls import TOPOLOGIES_OF

from gpu.emulation import on_device
from pycollective.comm.arguments.arrays import numpy_dtype
from pycollective.comm.cuda.arrays import allocate
from pycollective.comm.cuda.runtime import load

LONG = 1_000_005 if on_device() else 9000
"""Elements of float32: too many for the packets of any device, and divisible by three."""


def data(seed: int, shape: int | tuple[int, ...], dtype: str = "float32") -> np.ndarray[Any, Any]:
    """Some numbers of an element type."""
    random = np.random.default_rng(100 + seed)
    if dtype == "bool":
        return random.random(shape) < 0.5
    if dtype == "float8_e8m0fnu":  # powers of two
        return (2.0 ** random.integers(-4, 5, shape)).astype(numpy_dtype(dtype))
    if dtype.startswith("complex"):
        return (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(dtype)
    if np.issubdtype(numpy_dtype(dtype), np.integer):
        return random.integers(0, 5, shape).astype(dtype)
    return random.standard_normal(shape).astype(numpy_dtype(dtype))


def put(array: Any, device: int = 0) -> Any:
    """A DeviceArray with the content of a host array."""
    host = np.ascontiguousarray(array).reshape(np.shape(array))
    made = allocate(host.shape, str(host.dtype), device)
    made.copy_from_host(host.view(np.uint8) if host.ndim else host.reshape(1).view(np.uint8))
    return made


def get(array: Any, stream: int = 0) -> Any:
    """The content of a DeviceArray, in the order of its stream."""
    load().synchronize(stream)
    host = np.empty(array.shape, numpy_dtype(array.dtype))
    array.copy_to_host(host.reshape(-1).view(np.uint8), stream)
    return host


def same(found: Any, expected: Any, *what: object) -> None:
    """Check that a call gave the shape and the bits of a host array, or None as it did; `what` names the call."""
    if expected is None:
        assert found is None, what
        return
    assert found.shape == expected.shape, what
    assert get(found).tobytes() == np.ascontiguousarray(expected).tobytes(), what


def every_topology(comm: Any, collectives: Sequence[str], count: int) -> None:
    """Check that each collective has the bits of host arrays, by each topology that supports it."""
    for name in collectives:
        for topology in TOPOLOGIES_OF[name]:
            x = data(comm.rank, count)
            expected = getattr(comm, name)(x, topology=topology)
            same(getattr(comm, name)(put(x), topology=topology), expected, name, topology)


def in_window(comm: Any, x: np.ndarray[Any, Any]) -> Any:
    """A device array in a new window with the content of a host array."""
    made = comm.empty(x.shape, x.dtype, device="cuda")
    made.copy_from_host(x.view(np.uint8))
    return made


class Interface:
    """An array of a library that supports only the CUDA array interface."""

    def __init__(self, array: Any, **changes: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **changes}
        self.shape = self.__cuda_array_interface__["shape"]


class Dlpack:
    """An array of a library that supports only DLPack; `asked` is the stream that its consumer passed."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape = array.shape
        self.asked: Any = None

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, **rest: Any) -> Any:
        self.asked = stream
        return self.array.__dlpack__(max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()
