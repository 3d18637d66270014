"""CUDA arrays of any library: torch, cupy, numba, our own, anything with DLPack or the CUDA array interface (version
3).

Streams. A collective is enqueued in one stream: `stream=` if given (an integer handle, or the stream object of torch,
cupy, numba or cuda.core), else the current stream of the array's library; the legacy default stream for arrays of no
library. Earlier work in that stream completes before the call reads, and later work sees the result. An array that
names its producer's stream (CUDA array interface) is also ordered after that stream.

Lifetime. Arrays must live until the stream has completed the call. torch's allocator is notified of the use, so that
a tensor may be dropped earlier; a Handle holds its call's arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pycollective.comm.arguments.arrays import is_lazy_view, lazy_bit, numpy_dtype, package_of, torch_of
from pycollective.comm.cuda.runtime import load
from pycollective.dtypes import DTYPES

_TYPESTR = {row.typestr[1:]: name for name, row in DTYPES.items() if row.typestr}
_LEGACY = 1  # the legacy default stream, in the numbering of CUDA, DLPack and the array interface
ITEMSIZE = {name: row.itemsize for name, row in DTYPES.items()}
"""Bytes of an element."""


@dataclass(frozen=True, slots=True)
class View:
    """A contiguous array in device memory.

    Attributes:
        address: of its first element.
        shape, dtype: dtype by the core's name.
        device: its number.
        writable: False if the producer marks it read-only.
        owner: keeps the memory alive.
    """

    address: int
    shape: tuple[int, ...]
    dtype: str
    device: int
    writable: bool
    owner: Any

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count * ITEMSIZE[self.dtype]


def stream_of(stream: Any, x: Any) -> int:
    """The handle of the stream for a call on x; 0 is the legacy default stream.

    Raises:
        TypeError: `stream` is neither a handle nor a stream object.
    """
    if stream is None:
        return _current_stream(x)
    if isinstance(stream, int):
        return 0 if stream == _LEGACY else stream
    for attribute in ("cuda_stream", "ptr", "handle"):  # torch, cupy, numba
        value = getattr(stream, attribute, None)
        if value is not None:
            return int(getattr(value, "value", value) or 0)
    if hasattr(stream, "__cuda_stream__"):  # cuda.core: (version, handle)
        return int(stream.__cuda_stream__()[1])
    raise TypeError(f"stream must be an integer handle or a stream object, not {type(stream).__name__}")


def view(x: Any, stream: int, what: str) -> View:
    """The view of a device array for a call.

    Args:
        stream: handle of the stream in which it will be used; it is ordered after the array's producer.
        what: the argument's name, for errors.

    Raises:
        TypeError: not in device memory, or an element type that no collective takes.
        ValueError: not C-contiguous, or a torch tensor with the negative or conjugate bit.
    """
    torch = torch_of(x)
    if torch is not None:
        return _view_of_tensor(torch, x, stream, what)
    cuda = load()
    if isinstance(x, cuda.DeviceArray):
        return View(x.address, x.shape, x.dtype, x.device, True, x)
    if hasattr(x, "__cuda_array_interface__"):
        return _view_of_interface(x, x.__cuda_array_interface__, stream, what)
    return _view_of_dlpack(x, stream, what)


def new_like(x: Any, shape: tuple[int, ...], stream: int) -> Any:
    """An uninitialised array of x's library, type and device; for unknown libraries, a DeviceArray.

    Args:
        stream: in which it is written first: pools reuse memory whose last use was in the same stream.
    """
    torch, cupy = torch_of(x), package_of(x, "cupy", "ndarray")
    if torch is not None:
        if stream == _current_stream(x):
            return torch.empty(shape, dtype=x.dtype, device=x.device)
        with torch.cuda.stream(_torch_stream(torch, stream, x.device)):
            return torch.empty(shape, dtype=x.dtype, device=x.device)
    if cupy is not None:
        with x.device, cupy.cuda.ExternalStream(stream, x.device.id):
            return cupy.empty(shape, x.dtype)
    if type(x).__module__.startswith("numba."):
        from numba import cuda as numba_cuda

        return numba_cuda.device_array(shape, x.dtype)
    found = view(x, stream, "x")
    return allocate(shape, found.dtype, found.device)


def keep_for(x: Any, stream: int) -> None:
    """Record that x, made for another stream, is used in this one: its memory is reused after both have completed.

    Only torch's allocator needs this: in other libraries, only the user returns memory to the pool.
    """
    torch = torch_of(x)
    if torch is not None:
        x.record_stream(_torch_stream(torch, stream, x.device))


def allocate(shape: tuple[int, ...], dtype: str, device: int) -> Any:
    """A DeviceArray in newly allocated memory."""
    cuda = load()
    memory = cuda.allocate_plain(device, max(math.prod(shape) * ITEMSIZE[dtype], 1))
    return cuda.DeviceArray(memory, memory.address, shape, dtype, device)


def _current_stream(x: Any) -> int:
    torch, cupy = torch_of(x), package_of(x, "cupy", "ndarray")
    if torch is not None:
        return int(torch.cuda.current_stream(x.device).cuda_stream)
    if cupy is not None:
        return int(cupy.cuda.get_current_stream().ptr)
    return 0


def _torch_stream(torch: Any, stream: int, device: Any) -> Any:
    return torch.cuda.ExternalStream(stream, device=device) if stream else torch.cuda.default_stream(device)


def _view_of_tensor(torch: Any, x: Any, stream: int, what: str) -> View:
    if x.layout is not torch.strided:
        raise TypeError(f"{what} is a sparse tensor")
    if not x.is_contiguous():
        raise ValueError(f"{what} is not C-contiguous (strides {tuple(x.stride())}): pass a contiguous tensor")
    if is_lazy_view(x):
        raise ValueError(f"{what} is a tensor with its {lazy_bit(x)}")
    dtype = str(x.dtype).removeprefix("torch.")
    if dtype not in ITEMSIZE:
        raise TypeError(f"{what} has element type {dtype}, which no collective takes")
    if stream != _current_stream(x):  # its memory must not be reused before this stream has finished
        x.record_stream(_torch_stream(torch, stream, x.device))
    return View(x.data_ptr(), tuple(x.shape), dtype, x.device.index, True, x)


def _view_of_interface(x: Any, interface: dict[str, Any], stream: int, what: str) -> View:
    shape = tuple(int(extent) for extent in interface["shape"])
    order, kind = interface["typestr"][0], interface["typestr"][1:]
    if order == ">" or kind not in _TYPESTR:
        raise TypeError(f"{what} has element type {interface['typestr']}, which no collective takes")
    if interface.get("mask") is not None:
        raise TypeError(f"{what} is a masked array")
    strides, empty = interface.get("strides"), 0 in shape
    if strides is not None and not empty and not _contiguous(shape, strides, int(kind[1:])):
        raise ValueError(f"{what} is not C-contiguous (strides {tuple(strides)}): pass a contiguous array")
    address, read_only = interface["data"]
    cuda = load()
    device = cuda.device_of(address) if not empty else cuda.current_device()
    if device is None:
        raise TypeError(f"{what} claims to be in device memory, but its address is not")
    producer = interface.get("stream")  # in which the array's content may still be in progress
    if producer is not None and (handle := 0 if producer == _LEGACY else int(producer)) != stream:
        order_streams(cuda, device, handle, stream)
    return View(int(address or 0), shape, _TYPESTR[kind], device, not read_only, x)


def order_streams(cuda: Any, device: int, before: int, after: int) -> None:
    """Order later work in stream `after` behind the present work in stream `before`."""
    event = cuda.Event(device)
    event.record(before)
    event.hold_back(after)


def _view_of_dlpack(x: Any, stream: int, what: str) -> View:
    producer_stream = stream or _LEGACY
    try:
        capsule = x.__dlpack__(stream=producer_stream, max_version=(1, 0))
    except TypeError:  # an older producer does not know the keyword
        capsule = x.__dlpack__(stream=producer_stream)
    found = load().DlpackView(capsule)
    if not found.contiguous:
        raise ValueError(f"{what} is not C-contiguous: pass a contiguous array")
    return View(found.address, found.shape, found.dtype, found.device, not found.read_only, found)


def _contiguous(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    expected = itemsize
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def fill_with_zeros(array: View, stream: int) -> None:
    load().move(array.device, [(array.address, 0, array.nbytes)], stream)


def to_host(array: View, stream: int) -> np.ndarray[Any, Any]:
    """A flat copy in host memory."""
    cuda = load()
    copy = np.empty(array.count, numpy_dtype(array.dtype))
    cuda.copy(copy.ctypes.data, array.address, copy.nbytes, stream, array.device)
    cuda.synchronize(stream, array.device)
    return copy


def to_device(array: np.ndarray[Any, Any], into: View, stream: int) -> None:
    """Copy a flat host array into a device array; returns when done."""
    cuda = load()
    cuda.copy(into.address, array.ctypes.data, array.nbytes, stream, into.device)
    cuda.synchronize(stream, into.device)
