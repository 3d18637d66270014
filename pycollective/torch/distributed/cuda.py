"""All that this package asks torch about CUDA, in one place: tests without a GPU put another object there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch


class Cuda:
    """torch.cuda. Streams and events are torch's own."""

    def usable(self) -> bool:
        """Whether there can be CUDA tensors in this process."""
        return bool(torch.cuda.is_available())

    def device(self, x: Any) -> int:
        """The number of the device that holds a tensor; -1 for CPU memory."""
        return int(x.device.index) if x.is_cuda else -1

    def array(self, x: Any) -> Any:
        """A tensor on a device, as a communicator takes it."""
        return x

    def empty(self, count: int, dtype: Any, device: int) -> Any:
        """A one-dimensional tensor on a device, to be written first in its current stream."""
        return torch.empty(count, dtype=dtype, device=torch.device("cuda", device))

    def on_host(self, x: Any) -> Any:
        """A copy in CPU memory of what the current stream will have made of a tensor; waits for it."""
        return x.cpu()

    def current(self, device: int) -> Any:
        """The current stream of a device."""
        return torch.cuda.current_stream(device)

    def stream(self, device: int) -> Any:
        """A new stream, for collectives beside the computation."""
        return torch.cuda.Stream(device, priority=-1)

    def using(self, stream: Any) -> AbstractContextManager[Any]:
        """Makes a stream, and its device, current."""
        context: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context

    def mark(self, stream: Any) -> Any:
        """An event at the place to which a stream has been filled; it has query()."""
        return stream.record_event()

    def hold_back(self, stream: Any, event: Any) -> None:
        """What comes into a stream from now on waits for an event. The host does not."""
        stream.wait_event(event)

    def synchronize(self, stream: Any) -> None:
        """Block until a stream has finished with all that is in it."""
        stream.synchronize()

    def keep(self, x: Any, stream: Any) -> None:
        """A tensor's memory is not handed out again before `stream` has finished with what it holds now."""
        x.record_stream(stream)

    def promise(self, outputs: Sequence[Any], device: int, stream: Any) -> Any:
        """A future of what a stream will have made of tensors; who waits for it, waits in the own current stream."""
        future: Any = torch.futures.Future(devices=[torch.device("cuda", device)])
        with torch.cuda.stream(stream):
            future.set_result(list(outputs))
        return future


_asked = Cuda()


def cuda() -> Any:
    """The object to ask."""
    return _asked


def replace(other: Any) -> None:
    """For tests: ask `other` from now on."""
    global _asked
    _asked = other
