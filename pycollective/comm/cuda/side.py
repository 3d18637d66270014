"""The GPU side of a communicator: decides which backend executes a call on device arrays."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from pycollective import _core
from pycollective.comm.cuda.nccl.communicators import NcclTeam
from pycollective.comm.cuda.nccl.rail import RailTeam
from pycollective.comm.cuda.paths import HOST
from pycollective.comm.cuda.planner import Planned
from pycollective.comm.cuda.runtime import load
from pycollective.comm.cuda.signature import uses_nccl
from pycollective.comm.cuda.staged import StagedCalls
from pycollective.comm.cuda.team import DeviceTeam
from pycollective.comm.cuda.virtual import VirtualTeam
from pycollective.comm.host.team import HostTeam, part_bytes
from pycollective.comm.request import CallRequest
from pycollective.errors import TimeoutError

GpuTeam: TypeAlias = DeviceTeam | VirtualTeam | RailTeam
"""Executes calls on device arrays: of ranks that are processes, that are threads, or that are on several hosts."""


class StreamWork:
    """A call in a stream. Holds the call's arrays."""

    def __init__(self, backend: Any, request: CallRequest) -> None:
        self._backend, self._request = backend, request
        self._event = load().Event(request.device)
        self._event.record(request.stream)

    def wait(self, timeout: float | None = None) -> None:
        if timeout is not None and math.isnan(timeout):
            raise ValueError("timeout must be a number of seconds, not nan")
        end = None if timeout is None else time.monotonic() + timeout
        pause = 1e-5
        while not self._event.done():
            self._backend.check()
            if end is not None and time.monotonic() > end:
                raise TimeoutError("the call has not completed yet; the handle can be waited for again")
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
        self._backend.check()

    def test(self) -> bool:
        return bool(self._event.done())


class GpuSide:
    """A communicator's calls on device arrays, all of them on one device. A Backend. Collective.

    Raises:
        CommunicatorError: there is no GPU path on this system; states why.
    """

    def __init__(self, host: HostTeam, device: int) -> None:
        self.device = device
        self._host, self._staged = host, StagedCalls(host, device)
        self._nccl: NcclTeam | None = None
        self._note: Callable[[Planned], None] | None = None  # only processes of one host compare NCCL's calls
        self._team: GpuTeam
        if host.group.nodes.count > 1:
            self._nccl = NcclTeam(host, device)
            self._team = RailTeam(host, device, self._nccl)
        elif host.group.threads and host.group.size > 1:
            self._team = VirtualTeam(host, device)
        else:
            self._team = team = DeviceTeam(host, device)
            self._note = team.note
        self.path = self._team.path

    def run(self, request: CallRequest) -> None:
        self._backend(request).run(request)

    def start(self, request: CallRequest) -> StreamWork:
        if load().is_capturing(request.stream):
            raise ValueError(
                "a handle cannot be waited on within a graph: capture the blocking form, which does not block"
            )
        self.run(request)
        return StreamWork(self, request)

    def _backend(self, request: CallRequest) -> Any:
        if request.device != self.device:
            raise ValueError(
                f"this communicator's arrays are on device {self.device}, and this one is on device {request.device}: "
                "a rank works on one GPU; use another communicator (comm.dup()) for another"
            )
        if uses_nccl(request):
            if self._nccl is None:
                self._nccl = NcclTeam(self._host, self.device, self._note)
            return self._nccl
        return self._staged if self.path.kind == HOST else self._team

    def check(self) -> None:
        self._team.check()
        if self._nccl is not None:
            self._nccl.check()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Collective: a DeviceArray accessible to all ranks; see Communicator.empty."""
        name = _core.dtype_name(dtype)
        assert name is not None
        part_bytes(shape, dtype.itemsize, self._host.group.size)  # refuses sizes that no window can hold
        return self._team.empty(self._host.window_number(shape, name), shape, name)

    def locate(self, address: int, nbytes: int) -> tuple[int, int] | None:
        return self._team.locate(address, nbytes)

    def describe(self) -> str:
        way = {"host": "staged through host memory in pinned tiles", "local": "in the memory of one process"}
        return f"{way.get(self.path.kind, f'through windows by {self.path.kind}')}, because {self.path.reason}"

    def close(self) -> None:
        if self._nccl is not None:
            self._nccl.close()
        self._team.close()
        self._staged.close()
