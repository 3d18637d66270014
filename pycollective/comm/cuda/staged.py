"""GPU arrays through host memory: between hosts without NCCL, or if no path between the GPUs of a host works.

The CPU executes the call. Its steps work on tiles in pinned memory: while some are copied from the GPU and others to
it, those between them are reduced and sent. The host waits until the call's last message has been received; the last
copies to the GPU may then still be in progress, and later work in the call's stream waits for them. Messages are copied
whole.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np

from pycollective import _core
from pycollective.comm.arguments.arrays import numpy_dtype
from pycollective.comm.cuda import arrays
from pycollective.comm.cuda.arrays import View
from pycollective.comm.cuda.runtime import load
from pycollective.comm.cuda.signature import for_core
from pycollective.comm.host.team import HostTeam
from pycollective.comm.request import CallRequest
from pycollective.errors import CommunicatorError

_POLLS = 20
"""Looks at a stream before the thread sleeps between two looks."""


class StagedCalls:
    """Executes calls on device arrays in tiles that are staged through pinned host memory."""

    def __init__(self, host: HostTeam, device: int) -> None:
        self._host, self._device = host, device
        self._turn = threading.Lock()  # the copies of one call at a time
        self._copies: Any = None

    def run(self, request: CallRequest) -> None:
        """Execute the call. On return its result is in the stream: later work there sees it.

        Raises:
            CommunicatorError: the stream is being captured, or a copy has failed.
        """
        cuda = load()
        if cuda.is_capturing(request.stream):
            raise CommunicatorError(
                "this call cannot be captured into a graph: its arrays are staged through host memory, where the CPU "
                "executes it, and a graph contains only work of the GPU"
            )
        self._host.team.require_turn()
        with self._turn:
            if self._copies is None:
                self._copies = cuda.StagingCopies(self._device)
            self._wait_for(request.stream)
            try:
                self._host.run(self._on_cpu(request))
            except BaseException:
                self._copies.drain()  # before the caller frees the arrays
                raise
            self._copies.hold_back(request.stream)

    def _on_cpu(self, request: CallRequest) -> CallRequest:
        made = replace(request, device=None, stream=0, max_channels=0, signature=None)
        if request.collective == "barrier":
            made.x = made.out = np.empty(0, np.uint8)
        else:
            made.x, made.out = _for_executor(request.x), _for_executor(request.out)
            made.copies = self._copies.address
        return made

    def _wait_for(self, stream: int) -> None:
        """Block until the stream has completed its earlier work, which may take longer than the call's deadline."""
        point = load().Event(self._device)
        point.record(stream)
        pause, looks = 1e-5, 0
        while not point.done():
            looks += 1
            if looks < _POLLS:
                continue
            self._host.check()
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)

    def close(self) -> None:
        """The communicator was freed: free the pinned memory, after the copies in progress."""
        with self._turn:
            self._copies = None


def _for_executor(array: View | None) -> Any:
    described = for_core(array)
    return None if described is None else _core.HostBuffer.on_device(*described)


def host_copy(x: Any) -> np.ndarray[Any, Any]:
    """A host copy of a device array, for a message."""
    stream = arrays.stream_of(None, x)
    return arrays.to_host(arrays.view(x, stream, "x"), stream)


class ReceiveBuffer:
    """The host memory, `copy`, that receives a message for a device array.

    Raises:
        ValueError: out is read-only or not contiguous.
    """

    def __init__(self, out: Any) -> None:
        self._stream = arrays.stream_of(None, out)
        self._into = arrays.view(out, self._stream, "out")
        if not self._into.writable:
            raise ValueError("out is read-only")
        self.copy = np.empty(self._into.count, numpy_dtype(self._into.dtype))
        self._work: Any = None
        self._copied = False

    def behind(self, work: Any) -> ReceiveBuffer:
        """This object, as the work of a nonblocking message."""
        self._work = work
        return self

    def finish(self) -> None:
        if not self._copied:
            arrays.to_device(self.copy, self._into, self._stream)
            self._copied = True

    def wait(self, timeout: float | None = None) -> None:
        self._work.wait(timeout)
        self.finish()

    def test(self) -> bool:
        if not self._work.test():
            return False
        self.wait()
        return True
