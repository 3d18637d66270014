"""The GPU side of a communicator: it decides which backend carries out a call on device arrays."""

from __future__ import annotations

import math
import time
from typing import Any, Protocol

import numpy as np

from pycollective import _core
from pycollective.comm.backend import HostBackend
from pycollective.comm.cuda.host_copies import HostCopies
from pycollective.comm.cuda.nccl_comm import NcclTeam
from pycollective.comm.cuda.paths import HOST, Path
from pycollective.comm.cuda.planner import Planned
from pycollective.comm.cuda.rail import RailTeam
from pycollective.comm.cuda.runtime import load
from pycollective.comm.cuda.signature import uses_nccl
from pycollective.comm.cuda.team import DeviceTeam
from pycollective.comm.cuda.virtual import VirtualTeam
from pycollective.comm.host.team import part_bytes
from pycollective.comm.request import CallRequest
from pycollective.errors import TimeoutError


class GpuTeam(Protocol):
    """What carries out calls on device arrays: `DeviceTeam` for a rank that is a process, `VirtualTeam` for one that is
    a thread, `RailTeam` where the ranks live on several hosts."""

    path: Path

    def run(self, request: CallRequest) -> None:
        """Put a call into its stream."""
        ...

    def check(self) -> None:
        """Raise what went wrong, if anything did."""
        ...

    def note(self, planned: Planned) -> None:
        """Compare a call that NCCL is to carry out with the peers'."""
        ...

    def locate(self, address: int, nbytes: int) -> tuple[int, int] | None:
        """The window that memory is in, and the offset there; None: in none."""
        ...

    def empty(self, number: int, shape: tuple[int, ...], dtype: str) -> Any:
        """Collective: an array in a window."""
        ...

    def close(self) -> None:
        """The communicator was freed."""
        ...


class StreamWork:
    """A call in a stream. Keeps the call's arrays."""

    def __init__(self, backend: Any, request: CallRequest) -> None:
        self._backend, self._request = backend, request
        self._event = load().Event(request.device)
        self._event.record(request.stream)

    def wait(self, timeout: float | None = None) -> None:
        """Block until the stream has completed the call."""
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
        """Whether the stream has completed the call."""
        return bool(self._event.done())


class GpuSide:
    """A communicator's calls on device arrays. A Backend.

    Args:
        host: the communicator's backend. Collective.
        device: of this rank's arrays.

    Attributes:
        path: how arrays travel, and why.

    Raises:
        CommunicatorError: there is no GPU path here; says why.
    """

    def __init__(self, host: HostBackend, device: int) -> None:
        self.device = device
        self._host, self._copies = host, HostCopies(host)
        self._nccl: NcclTeam | None = None
        self._team: GpuTeam
        if host.group.nodes.count > 1:
            self._nccl = NcclTeam(host, device)
            self._team = RailTeam(host, device, self._nccl)
        elif host.group.threads and host.group.size > 1:
            self._team = VirtualTeam(host, device)
        else:
            self._team = DeviceTeam(host, device)
        self.path = self._team.path

    def run(self, request: CallRequest) -> None:
        self._backend(request).run(request)

    def start(self, request: CallRequest) -> StreamWork:
        if load().is_capturing(request.stream):
            raise ValueError(
                "a handle cannot be waited for within a graph: capture the blocking form, which does not block"
            )
        backend = self._backend(request)
        backend.run(request)
        return StreamWork(self, request)

    def _backend(self, request: CallRequest) -> Any:
        if request.device != self.device:
            raise ValueError(
                f"this communicator's arrays live on device {self.device}, and this one on device {request.device}: "
                "a rank works on one GPU; use another communicator (comm.dup()) for another"
            )
        if uses_nccl(request):
            if self._nccl is None:
                self._nccl = NcclTeam(self._host, self.device, self._team.note)
            return self._nccl
        return self._copies if self.path.kind == HOST else self._team

    def check(self) -> None:
        self._team.check()
        if self._nccl is not None:
            self._nccl.check()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Collective: a DeviceArray that all ranks can reach; see Communicator.empty."""
        name = _core.dtype_name(dtype)
        assert name is not None
        part_bytes(shape, dtype.itemsize, self._host.group.size)  # refuses what no window can hold
        return self._team.empty(self._host.window_number(shape, name), shape, name)

    def locate(self, address: int, nbytes: int) -> tuple[int, int] | None:
        """The window that memory is in, and the offset there; None: in none."""
        return self._team.locate(address, nbytes)

    def describe(self) -> str:
        """How arrays travel, for `explain`."""
        way = {"host": "copied through host memory", "local": "in the memory of one process"}
        return f"{way.get(self.path.kind, f'through windows by {self.path.kind}')}, because {self.path.reason}"

    def close(self) -> None:
        if self._nccl is not None:
            self._nccl.close()
        self._team.close()
