"""CUDA tensors for a torch that has none: CPU tensors over memory of the emulated device.

`install()` in every rank of a test, instead of gpu.emulation.install. torch computes with such tensors synchronously,
on the host; so wherever the backend requests device memory from torch or makes a stream current (and may then copy),
and wherever a stream waits in `eager` mode, the host waits. The collectives themselves use the same streams,
communicators and kernels as with real tensors.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from gpu import emulation
from pycollective import _core
from pycollective.comm.cuda.arrays import allocate
from pycollective.comm.cuda.runtime import load
from pycollective.comm.cuda.side import GpuSide
from pycollective.comm.request import CallRequest
from pycollective.torch.distributed import backend, cuda


def install(everything: bool = False, eager: bool = False) -> StandIn:
    """Load the emulated runtime and make the backend use the stand-in.

    Args:
        everything: treat every CPU tensor as a tensor on device 0; otherwise only those created by `put`.
        eager: a stream that waits makes the host wait too, for code that then computes immediately.
    """
    emulation.install()
    made = StandIn(everything, eager)
    cuda.replace(made)

    def in_memory(reduce: Any) -> Any:
        return lambda inputs, options: reduce(inputs, options) if made.device(inputs[0]) < 0 else NotImplemented

    reducer = _core.reducer_in_place
    _core.reducer_in_place = lambda *arguments: in_memory(reducer(*arguments))
    for group in backend._live:
        group.reduce_plain = in_memory(group.reduce_plain)
    put_into_stream = GpuSide.run

    def run(side: GpuSide, request: CallRequest) -> None:
        put_into_stream(side, request)
        if made.inside():  # a job, whose next step may compute with this call's result
            made.current(0).synchronize()

    GpuSide.run = run  # type: ignore[method-assign]
    return made


class Stream:
    """Args: address: of a stream; eager: see `install`; made: its owner."""

    def __init__(self, address: int, eager: bool, made: Any = None) -> None:
        self.cuda_stream, self._eager, self._made = address, eager, made

    def record_event(self) -> Event:
        return Event(self)

    def wait_event(self, event: Event) -> None:
        event.event.hold_back(self.cuda_stream)
        if self._eager:
            self.synchronize()

    def synchronize(self) -> None:
        load().synchronize(self.cuda_stream)


class Event:
    """A point in a stream."""

    def __init__(self, stream: Stream) -> None:
        self.event = load().Event(0)
        self.event.record(stream.cuda_stream)

    def query(self) -> bool:
        return bool(self.event.done())


class StandIn:
    """See pycollective.torch.distributed.cuda.Cuda. Device 0 only."""

    def __init__(self, everything: bool, eager: bool) -> None:
        self._everything, self._eager = everything, eager
        self._default, self._here = Stream(0, eager), threading.local()
        self._lent: list[Any] = []

    def usable(self) -> bool:
        return True

    def device(self, x: Any) -> int:
        if self._everything:
            return 0
        if x.layout != torch.strided:
            x = x._values()
        found = load().device_of(x.untyped_storage().data_ptr())
        return -1 if found is None else int(found)

    def array(self, x: Any) -> Any:
        dtype = str(x.dtype).removeprefix("torch.")
        assert x.is_contiguous()
        self._lent.append(x)  # torch's allocator would keep the memory until the stream has finished with it
        return load().DeviceArray(x, x.data_ptr(), tuple(x.shape), dtype, 0)

    def empty(self, count: int, dtype: Any, device: int) -> Any:
        self.current(device).synchronize()
        return empty((count,), dtype)

    def on_host(self, x: Any) -> Any:
        self.current(0).synchronize()
        return x.clone()

    def current(self, device: int) -> Stream:
        stream: Stream = getattr(self._here, "stream", self._default)
        return stream

    def inside(self) -> bool:
        """Whether the caller is inside a `using` block."""
        return hasattr(self._here, "stream")

    def stream(self, device: int) -> Stream:
        made = load().Stream(device)
        return Stream(made.address, self._eager, made)

    @contextmanager
    def using(self, stream: Stream) -> Iterator[None]:
        stream.synchronize()
        with self.current_is(stream):
            yield

    @contextmanager
    def current_is(self, stream: Stream) -> Iterator[None]:
        """torch.cuda.stream(stream)."""
        before = vars(self._here).copy()
        self._here.stream = stream
        try:
            yield
        finally:
            vars(self._here).clear()
            vars(self._here).update(before)

    def keep(self, x: Any, stream: Stream) -> None:
        pass

    def promise(self, outputs: Sequence[Any], device: int, stream: Stream) -> Any:
        stream.synchronize()  # callbacks have no stream to wait in
        future: Any = torch.futures.Future()
        future.set_result(list(outputs))
        return future


def empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """A tensor in the emulated device's memory."""
    count = int(np.prod(shape))
    width = torch.empty(0, dtype=dtype).element_size()
    return over(allocate((max(count * width, 1),), "uint8", 0))[: count * width].view(dtype).view(shape)


def over(array: Any) -> Any:
    """The bytes of a device array as a tensor, which keeps it alive."""
    memory = (ctypes.c_uint8 * array.nbytes).from_address(array.address)
    memory._owner = array  # type: ignore[attr-defined]
    return torch.frombuffer(memory, dtype=torch.uint8)


def put(x: Any) -> Any:
    """A copy of a tensor in the emulated device's memory."""
    return empty(tuple(x.shape), x.dtype).copy_(x)


def get(x: Any) -> Any:
    """The content of a tensor after all work in the default stream."""
    load().synchronize(0)
    return x.clone()
