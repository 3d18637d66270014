"""Collectives on GPU arrays: from a communicator's call to a launch."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pycollective import _core
from pycollective.comm import arrays as host_arrays
from pycollective.comm.calls import KIND, Call
from pycollective.comm.cuda import arrays
from pycollective.comm.cuda.host import run_through_host, to_device, to_host
from pycollective.comm.cuda.nccl import NCCL
from pycollective.comm.cuda.nccl_comm import NcclCalls, nccl_calls
from pycollective.comm.cuda.paths import HOST, Path
from pycollective.comm.cuda.request import Request, make_barrier, make_request
from pycollective.comm.cuda.runtime import device_number, load
from pycollective.comm.options import Options
from pycollective.comm.windows import next_number, part_bytes
from pycollective.errors import TimeoutError
from pycollective.schedule.collectives import CALLS

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator


_ROWS = tuple(CALLS.values())


class GpuSide(Protocol):
    """A rank's GPU side: `DeviceTeam` of a process, `VirtualTeam` of a thread, `RailTeam` where ranks live on several
    hosts."""

    device: int
    path: Path

    def run(self, request: Request) -> None:
        """Put a call into its stream."""
        ...

    def check(self) -> None:
        """Raise what went wrong, if anything did."""
        ...

    def empty(self, number: int, shape: tuple[int, ...], dtype: str) -> Any:
        """Collective: an array in a window."""
        ...

    def close(self) -> None:
        """The communicator was freed."""
        ...


class Flight:
    """A call in a stream, behind a Handle. Keeps the call's arrays."""

    def __init__(self, gpu: GpuSide | NcclCalls, request: Request) -> None:
        self._gpu, self._request = gpu, request
        self._event = load().Event(gpu.device)
        self._event.record(request.stream)

    def wait(self, timeout: float | None = None) -> None:
        """Block until the stream has come past the call."""
        if timeout is not None and math.isnan(timeout):
            raise ValueError("timeout must be a number of seconds, not nan")
        end = None if timeout is None else time.monotonic() + timeout
        pause = 1e-5
        while not self._event.done():
            self._gpu.check()
            if end is not None and time.monotonic() > end:
                raise TimeoutError("the call has not completed yet; the handle can be waited for again")
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
        self._gpu.check()

    def test(self) -> bool:
        """Whether the stream has come past the call."""
        return bool(self._event.done())


def launch(comm: Communicator, call: Call, options: Options, nonblocking: bool) -> tuple[Any, Any]:
    """Put a call on GPU arrays into a stream.

    Returns:
        what the call returns, and its flight if nonblocking.

    Raises:
        TypeError, ValueError: arrays of the CPU and the GPU in one call, or what cannot work otherwise.
        CommunicatorError: there is no GPU path here; says why.
    """
    cuda, out = load(), call.out
    if call.kind == KIND["barrier"]:
        device = int(cuda.current_device()) if comm._gpu is None else comm._gpu.device
        request = make_barrier(options, device, arrays.stream_of(options.get("stream"), None))
    else:
        for what, array in (("x", call.x), ("out", out)):
            if array is not None and not host_arrays.on_device(array):
                raise TypeError(f"{what} is in CPU memory, and the other array on a GPU: move one of them")
        stream = arrays.stream_of(options.get("stream"), out if call.x is None else call.x)
        if out is None and call.shape is not None:
            out = arrays.new_like(call.x, call.shape, stream)
            if not _ROWS[call.kind].has_result(comm.rank):
                _fill_with_zeros(out, stream)
        request = make_request(call, out, stream, options, comm.rank, comm.size)
    if nonblocking and cuda.is_capturing(request.stream):
        raise ValueError(
            "a handle cannot be waited for within a graph: capture the blocking form, which does not block"
        )
    gpu = gpu_side(comm, request.device)
    watched: GpuSide | NcclCalls = gpu
    if request.signature.topology == NCCL:
        watched = nccl_calls(comm, request.device)
        watched.run(request)
    elif gpu.path.kind == HOST:
        run_through_host(comm, request, call.kind)
    else:
        gpu.run(request)
    flight = Flight(watched, request) if nonblocking else None
    return (None if call.shape is None else out), flight


def _fill_with_zeros(out: Any, stream: int) -> None:
    """In the stream."""
    into = arrays.view(out, stream, "out")
    if into.count:
        load().move(into.device, [(into.address, 0, into.nbytes)], stream)


def gpu_side(comm: Communicator, device: int) -> GpuSide:
    """A communicator's GPU side on a device; made by the first call, which is collective.

    Raises:
        ValueError: the communicator's arrays live on another device.
    """
    if comm._gpu is None:
        comm._gpu = _make(comm, device)
    if comm._gpu.device != device:
        raise ValueError(
            f"this communicator's arrays live on device {comm._gpu.device}, and this one on device {device}: "
            "a rank works on one GPU; use another communicator (comm.dup()) for another"
        )
    return comm._gpu


def _make(comm: Communicator, device: int) -> GpuSide:
    if not isinstance(comm._backend, _core.Team):
        from pycollective.comm.cuda.rail import RailTeam

        return RailTeam(comm, device)
    if comm._threads and comm.size > 1:
        from pycollective.comm.cuda.virtual import VirtualTeam

        return VirtualTeam(comm, device)
    from pycollective.comm.cuda.team import DeviceTeam

    return DeviceTeam(comm, device)


def empty(comm: Communicator, shape: tuple[int, ...], dtype: np.dtype[Any], device: str | int) -> Any:
    """See Communicator.empty."""
    load()
    where = device_number(device)
    name = _core.dtype_name(dtype)
    assert name is not None
    part_bytes(shape, dtype.itemsize, comm.size)  # refuses what no window can hold
    number = next_number(comm, shape, name)
    return gpu_side(comm, where).empty(number, shape, name)


def host_copy(x: Any) -> np.ndarray[Any, Any]:
    """What a device array holds, for a message: those go through host memory."""
    stream = arrays.stream_of(None, x)
    return to_host(arrays.view(x, stream, "x"), stream)


class Landing:
    """The host memory into which a message for a device array comes.

    Args:
        out: the device array.

    Attributes:
        copy: the memory.

    Raises:
        ValueError: out is read-only or not contiguous.
    """

    def __init__(self, out: Any) -> None:
        self._stream = arrays.stream_of(None, out)
        self._into = arrays.view(out, self._stream, "out")
        if not self._into.writable:
            raise ValueError("out is read-only")
        self.copy = np.empty(self._into.count, host_arrays.numpy_dtype(self._into.dtype))
        self._flight: Any = None
        self._landed = False

    def behind(self, flight: Any) -> Landing:
        """Itself, as the flight of a nonblocking message."""
        self._flight = flight
        return self

    def finish(self) -> None:
        """Copy the message into the device array."""
        if not self._landed:
            to_device(self.copy, self._into, self._stream)
            self._landed = True

    def wait(self, timeout: float | None = None) -> None:
        """Block until the message is in the device array."""
        self._flight.wait(timeout)
        self.finish()

    def test(self) -> bool:
        """Whether the message is in the device array."""
        if not self._flight.test():
            return False
        self.wait()
        return True
