"""Collectives on CUDA tensors: enqueued in a stream, where they wait for their inputs; the host does not block."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from pycollective.comm.communicator import Communicator
from pycollective.comm.request import CallRequest, read
from pycollective.errors import TimeoutError
from pycollective.torch.distributed.cuda import cuda
from pycollective.torch.distributed.execution.work import CollectiveWork

_NAP, _LONGEST_NAP = 1e-5, 1e-3


class Streams:
    """A process group's own streams, so that communication and computation can overlap."""

    def __init__(self) -> None:
        self._own: dict[tuple[int, bool], Any] = {}
        self._used: set[int] = set()

    def enter(self, device: int, jobs: bool, later: bool) -> Any:
        """The stream for a call, which waits for the current work of the current stream.

        Args:
            jobs: the call is one of the job queue's, which has its own communicator and stream.
            later: the call is asynchronous; synchronous calls use the current stream.
        """
        current = cuda().current(device)
        self._used.add(device)
        if not later:
            return current
        stream = self._own.get((device, jobs))
        if stream is None:
            stream = self._own[device, jobs] = cuda().stream(device)
        stream.wait_event(current.record_event())
        return stream

    def synchronize(self) -> None:
        """Block until the current streams of the devices in use, and these, have completed."""
        for stream in (*map(cuda().current, self._used), *self._own.values()):
            stream.synchronize()


def launch(comm: Communicator, request: CallRequest, stream: Any) -> None:
    """Enqueue a collective in a stream. `request.x` and `request.out`: tensors on one device, None if there is none."""
    data, into = request.x, request.out
    x = None if data is None else cuda().array(data)
    out = x if into is data else None if into is None else cuda().array(into)
    made = read(request.collective, x, out, None, {"stream": stream}, request.root, request.counts)
    made.op, made.scale, made.topology, made.timeout = request.op, request.scale, request.topology, request.timeout
    comm.call(made)


class DeviceWork(CollectiveWork):
    """A call in a stream. Its methods have the semantics of torch's own CUDA backend.

    Args:
        comm: the communicator of the call.
        device, stream: where it is enqueued.
        outputs: the tensors that it fills.
    """

    def __init__(self, comm: Communicator, device: int, stream: Any, outputs: Sequence[Any]) -> None:
        super().__init__()
        self._comm, self._device, self._stream, self.outputs = comm, device, stream, list(outputs)
        self._completed = stream.record_event()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Let the current stream wait for the call. With a timeout, the host waits, too, until the call completes.

        Raises:
            pycollective.TimeoutError: not completed in time. Any error on the communicator's device so far.
        """
        if isinstance(timeout, timedelta) and timeout:
            self._block(timeout.total_seconds())
        cuda().current(self._device).wait_event(self._completed)
        self._comm.check()
        return True

    def _block(self, seconds: float) -> None:
        until, nap = time.monotonic() + seconds, _NAP
        while not self._completed.query():
            self._comm.check()
            if time.monotonic() > until:
                raise TimeoutError("the call has not completed yet; it can be waited for again")
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)

    def block_current_stream(self) -> None:
        """wait()."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the stream has completed the call. Does not block."""
        return bool(self._completed.query())

    test = is_completed

    def exception(self) -> BaseException | None:
        """The error on the communicator's device, if any, once the stream has completed the call."""
        if self.is_completed():
            try:
                self._comm.check()
            except RuntimeError as error:
                return error
        return None

    def get_future(self) -> Any:
        """A torch.futures.Future of the tensors. It completes immediately: its callbacks run in a stream that waits."""
        return cuda().promise(self.outputs, self._device, self._stream)

    def together(self, outputs: Sequence[Any]) -> DeviceWork:
        """This call and those before it in its stream, as one."""
        return DeviceWork(self._comm, self._device, self._stream, outputs)


def finish_in(stream: Any, finish: Callable[[], None], outputs: Sequence[Any]) -> None:
    """Run the rest of a call (copies to tensors that are not contiguous) in its stream."""
    with cuda().using(stream):
        finish()
    for x in outputs:
        cuda().keep(x, stream)


def put_on_device(copy: Any, out: Any, device: int) -> None:
    """Copy a message from CPU memory to its tensor; returns once it is there."""
    current = cuda().current(device)
    with cuda().using(current):
        out.detach().copy_(copy)
    current.synchronize()
