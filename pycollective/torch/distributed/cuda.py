"""All of this package's uses of torch.cuda, in one place: tests without a GPU substitute another object."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch


class Cuda:
    """Wraps torch.cuda. Streams and events are torch's own."""

    def usable(self) -> bool:
        """Return whether there can be CUDA tensors in this process."""
        return bool(torch.cuda.is_available())

    def device(self, x: Any) -> int:
        """The index of the device that holds a tensor; -1 for CPU memory."""
        return int(x.device.index) if x.is_cuda else -1

    def array(self, x: Any) -> Any:
        """A tensor on a device, in the form that a communicator takes."""
        return x

    def empty(self, count: int, dtype: Any, device: int) -> Any:
        """An uninitialized one-dimensional tensor on a device, first written in the current stream."""
        return torch.empty(count, dtype=dtype, device=torch.device("cuda", device))

    def on_host(self, x: Any) -> Any:
        """A copy of a tensor in CPU memory, made in the current stream; waits for it."""
        return x.cpu()

    def current(self, device: int) -> Any:
        return torch.cuda.current_stream(device)

    def stream(self, device: int) -> Any:
        """A new stream, for collectives that overlap with computation."""
        return torch.cuda.Stream(device, priority=-1)

    def using(self, stream: Any) -> AbstractContextManager[Any]:
        """Context manager that makes a stream and its device current."""
        context: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context

    def keep(self, x: Any, stream: Any) -> None:
        """Keep a tensor's memory from being reused before `stream` has completed its current work."""
        x.record_stream(stream)

    def promise(self, outputs: Sequence[Any], device: int, stream: Any) -> Any:
        """A future of tensors that a stream fills; waiting for it makes the caller's current stream wait."""
        future: Any = torch.futures.Future(devices=[torch.device("cuda", device)])
        with torch.cuda.stream(stream):
            future.set_result(list(outputs))
        return future


_cuda = Cuda()


def cuda() -> Any:
    """The object to use."""
    return _cuda


def replace(other: Any) -> None:
    """Use `other` from now on; for tests."""
    global _cuda
    _cuda = other
